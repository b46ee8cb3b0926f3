//! From a list to the actions of the host, in turn, that run all of the list or an extent.
//!
//! A **node** is an entry that is submitted, or a visit that is launched as a graph. A node waits for another if its
//! entries wait for the other's. An extent of the list begins after all earlier work on its own stream. It ends when all its queues
//! have ended.

use std::collections::HashMap;
use std::ops::Range;

use device::StreamId;

use super::body::Item;
use super::data::{Held, NONE, Program};
use super::order::Order;

/// An action of the host. Queues are numbers of the program's, events are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Later work on the queue waits for the event.
    Wait { queue: u16, event: u32 },
    /// The entry with that number among the items of a visit is submitted. Outside of all visits the visit's number is
    /// `NONE`.
    Submit { visit: u32, item: u32 },
    /// The graph of a visit is launched.
    Launch { visit: u32, graph: u32 },
    /// A visit that is not part of a graph has ended.
    End { visit: u32 },
    /// The event stands for all earlier work on the queue.
    Record { queue: u16, event: u32 },
}

/// The extent of a list that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Extent {
    All,
    /// A visit. It may be a graph.
    Visit(u32),
    /// A visit's graph: all of the visit but the copies of its inputs.
    Inside(u32),
}

/// The actions of the host that run a list.
pub(crate) struct Schedule {
    pub(crate) actions: Vec<Action>,
    /// The number of events.
    pub(crate) events: usize,
}

#[derive(Clone, Copy)]
enum Node {
    /// All earlier submissions.
    Start,
    Entry {
        visit: u32,
        item: u32,
    },
    Graph {
        visit: u32,
        graph: u32,
    },
    /// The end of all queues.
    End,
}

struct Builder<'p, R> {
    program: &'p Program<R>,
    numbers: HashMap<StreamId, usize>,
    /// The positions of the extent.
    positions: Range<u32>,
    /// By position, counted from the first of the extent: its node.
    node_of: Vec<u32>,
    nodes: Vec<Node>,
    /// Waits between nodes, with the numbers of nodes as positions. The queue of a graph is that of its visit.
    order: Order,
    /// By queue: the node of its last entry.
    last: Vec<Option<u32>>,
    /// By queue: whether it has been given a node.
    begun: Vec<bool>,
    /// Visits that ended, each with the number of nodes before the end.
    ends: Vec<(u32, u32)>,
    required: Vec<u32>,
}

/// How far the builder is in the list.
struct At {
    /// The visit that an [`Item::Inner`] begins.
    next_visit: u32,
    position: u32,
}

impl Schedule {
    /// The schedule of an extent of a program. `graph` gives the number of a visit's graph, if the visit is launched as
    /// one. With `poisons`, work is also submitted at the end of visits. A wait for a queue of regions then waits for
    /// all earlier work on the queue, so it includes this work.
    pub(crate) fn of<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
        program: &Program<R>,
        extent: Extent,
        poisons: bool,
        graph: &mut dyn FnMut(usize) -> Option<u32>,
    ) -> Schedule {
        let (base, positions) = match extent {
            Extent::All => (program.queues[0], 0..program.length),
            Extent::Visit(visit) => (program.visits[visit as usize].stream, program.visits[visit as usize].positions()),
            Extent::Inside(visit) => (program.visits[visit as usize].stream, program.in_graph(visit as usize)),
        };
        let (width, length) = (program.queues.len(), positions.len());
        let numbers: HashMap<StreamId, usize> = program.queues.iter().copied().zip(0..).collect();
        let base = numbers[&base];
        let mut builder = Builder {
            program,
            numbers,
            node_of: vec![NONE; length],
            nodes: Vec::new(),
            order: Order::empty(width, length + 2),
            last: vec![None; width],
            begun: vec![false; width],
            ends: Vec::new(),
            required: Vec::new(),
            positions: positions.clone(),
        };
        builder.add(Node::Start, base, 0..0, &[]);
        match extent {
            Extent::All => {
                let mut at = At { next_visit: 0, position: 0 };
                builder.items(NONE, program.outermost, 0, &mut at, graph);
            }
            Extent::Visit(visit) => builder.visit(&mut At { next_visit: visit, position: positions.start }, graph),
            Extent::Inside(visit) => {
                let (held, mut at) =
                    (program.visits[visit as usize].held, At { next_visit: visit + 1, position: positions.start });
                let inputs = program.bodies[held.body as usize].inputs;
                builder.items(visit, held, inputs, &mut at, graph);
                builder.ends.push((builder.nodes.len() as u32, visit));
            }
        }
        builder.finish(base, poisons)
    }
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Builder<'_, R> {
    /// Adds nodes for the items of a visit, from the item number `first` on.
    fn items(&mut self, visit: u32, held: Held, first: u32, at: &mut At, graph: &mut dyn FnMut(usize) -> Option<u32>) {
        let body = &self.program.bodies[held.body as usize];
        for (number, item) in body.items.iter().enumerate().skip(first as usize) {
            match item {
                Item::Join { .. } => at.position += 1,
                Item::Inner => self.visit(at, graph),
                Item::Entry(entry) => {
                    let node = Node::Entry { visit, item: number as u32 };
                    let queue = self.numbers[&entry.queue];
                    self.add(node, queue, at.position..at.position + 1, &[queue]);
                    at.position += 1;
                }
            }
        }
    }

    /// Adds nodes for the visit that begins at `at`: one if it is launched as a graph.
    fn visit(&mut self, at: &mut At, graph: &mut dyn FnMut(usize) -> Option<u32>) {
        let (number, program) = (at.next_visit, self.program);
        let visit = &program.visits[number as usize];
        at.next_visit += 1;
        match graph(number as usize) {
            None => self.items(number, visit.held, 0, at, graph),
            Some(graph) => {
                let in_graph = program.in_graph(number as usize);
                for item in 0..program.bodies[visit.held.body as usize].inputs {
                    let queue = self.numbers[&visit.stream];
                    self.add(Node::Entry { visit: number, item }, queue, at.position..at.position + 1, &[queue]);
                    at.position += 1;
                }
                let queues = self.queues_of(number as usize);
                self.add(Node::Graph { visit: number, graph }, self.numbers[&visit.stream], in_graph, &queues);
                (at.position, at.next_visit) = (visit.end, visit.next);
            }
        }
        self.ends.push((self.nodes.len() as u32, number));
    }

    /// The queues that a visit uses.
    fn queues_of(&self, visit: usize) -> Vec<usize> {
        let mut used = vec![false; self.last.len()];
        for inner in &self.program.visits[visit..self.program.visits[visit].next()] {
            for item in &self.program.bodies[inner.held.body as usize].items {
                if let Item::Entry(entry) = item {
                    used[self.numbers[&entry.queue]] = true;
                }
            }
        }
        (0..used.len()).filter(|queue| used[*queue]).collect()
    }

    /// Adds a node on `stream` with the entries at `positions`, on `queues`.
    fn add(&mut self, node: Node, stream: usize, positions: Range<u32>, queues: &[usize]) {
        let number = self.nodes.len() as u32;
        let Builder { program, required, order, .. } = self;
        let first = program.waits.partition_point(|wait| wait.position < positions.start);
        let waits = program.waits[first..].iter().take_while(|wait| wait.position < positions.end);
        // Entries before the extent are done when it begins.
        let on = waits.filter_map(|wait| wait.on.checked_sub(self.positions.start));
        required.extend(on.map(|on| self.node_of[on as usize]).filter(|on| *on != NONE && *on != number));
        // Entries of a queue run in turn, also those of graphs on other streams.
        let before = queues.iter().filter_map(|queue| self.last[*queue]);
        required.extend(before.filter(|before| order.queue_of(*before) != stream));
        if number > 0 && !self.begun[stream] {
            required.push(0);
        }
        order.submit(number, stream, required);
        self.begun[stream] = true;
        queues.iter().for_each(|queue| self.last[*queue] = Some(number));
        for position in positions {
            self.node_of[(position - self.positions.start) as usize] = number;
        }
        self.nodes.push(node);
    }

    /// The actions, up to the end of all queues on the queue `base`.
    fn finish(mut self, base: usize, poisons: bool) -> Schedule {
        let number = self.nodes.len() as u32;
        let ends = (0..self.begun.len()).filter(|queue| *queue != base);
        let mut required: Vec<u32> = ends.filter_map(|queue| self.order.last_before(queue, number)).collect();
        self.order.submit(number, base, &mut required);
        self.nodes.push(Node::End);
        // By node: the last one that waits for it.
        let mut last_wait = vec![NONE; self.nodes.len()];
        self.order.waits.iter().for_each(|wait| last_wait[wait.on as usize] = wait.position);
        let (mut actions, mut events) = (Vec::new(), Events::default());
        let mut poisoned = vec![false; self.begun.len()];
        for visit in self.program.visits.iter().filter(|_| poisons) {
            poisoned[self.numbers[&visit.stream]] = true;
        }
        let (mut waits, mut ends) = (self.order.waits.iter().peekable(), self.ends.iter().peekable());
        let mut event_of: HashMap<u32, u32> = HashMap::new();
        for (number, node) in (0..).zip(&self.nodes) {
            let queue = self.order.queue_of(number) as u16;
            while let Some(wait) = waits.next_if(|wait| wait.position == number) {
                let of = self.order.queue_of(wait.on);
                if poisoned[of] {
                    let event = events.take();
                    actions.extend([Action::Record { queue: of as u16, event }, Action::Wait { queue, event }]);
                    events.give_back(event);
                    continue;
                }
                let event = event_of[&wait.on];
                actions.push(Action::Wait { queue, event });
                if last_wait[wait.on as usize] == number {
                    event_of.remove(&wait.on);
                    events.give_back(event);
                }
            }
            match *node {
                Node::Start | Node::End => {}
                Node::Entry { visit, item } => actions.push(Action::Submit { visit, item }),
                Node::Graph { visit, graph } => actions.push(Action::Launch { visit, graph }),
            }
            while let Some(&(_, visit)) = ends.next_if(|(nodes, _)| *nodes == number + 1) {
                actions.push(Action::End { visit });
            }
            if last_wait[number as usize] != NONE && !poisoned[usize::from(queue)] {
                let event = events.take();
                event_of.insert(number, event);
                actions.push(Action::Record { queue, event });
            }
        }
        Schedule { actions, events: events.count as usize }
    }
}

/// Events by number. A number is used again once nothing waits for it any more.
#[derive(Default)]
struct Events {
    free: Vec<u32>,
    count: u32,
}

impl Events {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    fn give_back(&mut self, event: u32) {
        self.free.push(event);
    }
}
