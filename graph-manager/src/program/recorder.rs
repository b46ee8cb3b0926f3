//! From submissions to a list.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem::{discriminant, take};
use std::rc::Rc;

use device::{Accesses, BufferId, Device, Home, Op, StreamId, Tensor, TraceEvent};

use super::body::{Body, Entry, HostCall, Item, Own, Use, Work};
use super::body_buffers::BodyBuffers;
use super::data::{Held, Join, NONE, OUTSIDE, Program, Taken, Visit};
use super::digests::Digest;
use super::order::base;
use super::refused::Refused;
use super::streams::{Reached, Streams};
use crate::error::{Error, OUTSIDE as OUTSIDE_REGIONS, Result};
use crate::policy::Instance;

/// A step that is being recorded.
pub(crate) struct Recorder<R> {
    program: Program<R>,
    /// Bodies by digest.
    bodies: HashMap<u64, Vec<u32>>,
    /// The visits under way, the innermost last. The first is the outermost level: it is no visit.
    open: Vec<Open>,
    streams: Streams,
    /// Submissions that are not in the list yet.
    heard: Vec<TraceEvent>,
    /// For the buffers that regions take, and for others: the last visit that has mentioned each, and the buffer's
    /// number there.
    mentions: [Vec<(u32, u32)>; 2],
    /// The index in the program's `outside` of each buffer that no region takes.
    outside: HashMap<BufferId, u32>,
    /// Buffers that code outside of the step reads, each with the position up to which the code may read.
    kept: Vec<(u32, u32)>,
    /// By buffer that a region takes: the position of the taking.
    taken_at: Vec<u32>,
    /// By buffer that a region takes: whether an entry has used it.
    used: Vec<bool>,
    /// The buffers that bodies of `when` have alone.
    of_bodies: BodyBuffers,
    /// The statuses that operations have made so far. Updates follow such a status.
    statuses: RefCell<Vec<BufferId>>,
    /// Steps with graphs leave out the current submission.
    early: bool,
    /// The first mistake, with the mistake's visit.
    refused: Option<(u32, Refused)>,
}

/// A visit under way.
struct Open {
    visit: u32,
    stream: StreamId,
    /// The graph that the visit is part of, if there is one: the visit that becomes the graph.
    graph: Option<Graph>,
    items: Vec<Item>,
    inputs: u32,
    uses: Vec<Use>,
    own: Vec<Own>,
    table: Vec<u32>,
    digest: Digest,
}

/// A visit that becomes a graph.
#[derive(Clone, Copy)]
struct Graph {
    visit: u32,
    stream: StreamId,
    /// The count of submissions at the visit's beginning.
    since: u64,
}

impl Open {
    fn new(visit: u32, stream: StreamId, graph: Option<Graph>) -> Open {
        let (items, uses, own, table) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Open { visit, stream, graph, items, inputs: 0, uses, own, table, digest: Digest::default() }
    }
}

impl<R: Copy + Eq + Hash + std::fmt::Display> Recorder<R> {
    pub(crate) fn new(microbatches: usize, compute: StreamId) -> Recorder<R> {
        let program = Program {
            microbatches,
            visits: Vec::new(),
            outermost: Held::default(),
            bodies: Vec::new(),
            tables: Vec::new(),
            buffers: Vec::new(),
            by_number: Vec::new(),
            first_number: 0,
            outside: Vec::new(),
            joins: Vec::new(),
            queues: vec![compute],
            length: 0,
            waits: Vec::new(),
            lifetimes: Vec::new(),
            returned: Vec::new(),
        };
        Recorder {
            program,
            bodies: HashMap::new(),
            open: vec![Open::new(NONE, compute, None)],
            streams: Streams::default(),
            heard: Vec::new(),
            mentions: [Vec::new(), Vec::new()],
            outside: HashMap::new(),
            kept: Vec::new(),
            taken_at: Vec::new(),
            used: Vec::new(),
            of_bodies: BodyBuffers::default(),
            statuses: RefCell::default(),
            early: false,
            refused: None,
        }
    }

    /// Refuses an operation that follows a status if no earlier operation has made the status.
    pub(crate) fn check_status(&self, op: &Op) -> device::Result<()> {
        if let Op::When(when) = op {
            let before = self.statuses.borrow().len();
            let checked = when.body.iter().try_for_each(|op| self.check_status(op));
            // A status that is made in a body is there for the body alone.
            self.statuses.borrow_mut().truncate(before);
            return checked;
        }
        self.statuses.borrow_mut().extend(op.makes_status().map(|status| status.buffer));
        match op.follows_status() {
            Some(status) if !self.statuses.borrow().contains(&status.buffer) => {
                let problem = "no clip_scale comes before it in the step, so it would never update. Fix: submit \
                               square_sum and clip_scale with this status first, also without clipping";
                Err(device::Error::operation(op.name(), problem))
            }
            _ => Ok(()),
        }
    }

    /// Begins a visit within the innermost visit, on that stream; returns the new visit's index. A region that is
    /// `captured` becomes a graph, unless it is part of one.
    pub(crate) fn begin(
        &mut self,
        device: &Device,
        region: R,
        instance: Option<Instance<R>>,
        stream: StreamId,
        captured: bool,
    ) -> usize {
        self.hear(device);
        let visit = self.program.visits.len() as u32;
        let outer = self.top();
        outer.items.push(Item::Inner);
        outer.digest.add(2);
        let (outer, graph) = (outer.visit, outer.graph);
        let graph = graph.or_else(|| captured.then_some(Graph { visit, stream, since: self.streams.submitted }));
        let (start, taken) = (self.program.length, self.program.buffers.len() as u32);
        if !self.program.queues.contains(&stream) {
            self.program.queues.push(stream);
        }
        let name = region.to_string().into();
        let held = Held::default();
        self.program.visits.push(Visit {
            region,
            instance,
            name,
            outer,
            next: 0,
            start,
            end: start,
            stream,
            taken: (taken, taken),
            held,
        });
        self.open.push(Open::new(visit, stream, graph));
        visit as usize
    }

    /// Ends the innermost visit.
    pub(crate) fn end(&mut self, device: &Device) {
        self.hear(device);
        let Some(open) = self.open.pop() else { unreachable!("a visit ends after it has begun") };
        let at = open.visit as usize;
        let held = self.hold(open);
        let (next, taken, end) =
            (self.program.visits.len() as u32, self.program.buffers.len() as u32, self.program.length);
        let visit = &mut self.program.visits[at];
        (visit.next, visit.end, visit.taken.1, visit.held) = (next, end, taken, held);
    }

    /// The name of a visit's region.
    pub(crate) fn name(&self, visit: usize) -> Rc<str> {
        self.program.visits[visit].name.clone()
    }

    /// Whether a region has taken that buffer.
    pub(crate) fn takes(&self, buffer: BufferId) -> bool {
        self.program.taken(buffer).is_some()
    }

    /// The innermost visit takes a buffer.
    pub(crate) fn take(&mut self, device: &Device, name: &'static str, tensor: &Tensor, home: Home) {
        self.hear(device);
        let program = &mut self.program;
        let number = tensor.buffer.number();
        if program.buffers.is_empty() {
            program.first_number = number;
        }
        let (index, bytes) = (program.buffers.len() as u32, tensor.bytes());
        program.by_number.resize(number - program.first_number, NONE);
        program.by_number.push(index);
        let (buffer, address) = (tensor.buffer, tensor.address);
        self.taken_at.push(self.program.length);
        self.used.push(false);
        let visit = self.top().visit;
        self.program.buffers.push(Taken { bytes, home, address, buffer, visit });
        // `NONE - 1` is no visit: `NONE` stands for the outermost level.
        self.mentions[0].push((NONE - 1, 0));
        let local = self.local(index);
        let open = self.top();
        open.own.push(Own { local, name, bytes, home });
        open.digest.add(bytes as u64);
        open.digest.add_hash(&home);
        open.digest.add(name.as_ptr() as u64);
    }

    /// Notes that the innermost visit has submitted copies of the visit's inputs, and nothing else so far.
    pub(crate) fn inputs_are_copied(&mut self, device: &Device) {
        self.hear(device);
        let open = self.top();
        open.inputs = open.items.len() as u32;
        open.digest.add(u64::from(open.inputs));
    }

    /// As [`Recorder::hear`], for submissions that steps with graphs leave out.
    pub(crate) fn hear_early(&mut self, device: &Device) {
        self.early = true;
        self.hear(device);
        self.early = false;
    }

    /// A call of the host comes next, after all earlier work on the region's stream.
    pub(crate) fn host_call(&mut self, device: &Device, call: HostCall) {
        self.hear(device);
        let (queue, accesses) = (self.top().stream, call.accesses.clone());
        if self.top().graph.is_some() {
            self.refuse(Refused::HostCall(call.name));
        }
        self.entry(queue, Work::Host(Rc::new(call)), &accesses, None);
    }

    /// Keeps the memory of `tensors` up to here, for code outside of the step.
    pub(crate) fn keep(&mut self, device: &Device, tensors: &[Tensor]) {
        self.hear(device);
        if let Some(buffer) = self.of_bodies.first_of(tensors) {
            self.refuse(Refused::LeftBody("the code outside of the step", buffer));
        }
        let taken = tensors.iter().filter_map(|tensor| self.program.taken(tensor.buffer));
        self.kept.extend(taken.map(|index| (index as u32, self.program.length)));
    }

    /// The whole list, with the order and the lifetimes of the list's buffers.
    ///
    /// # Errors
    /// The first mistake in the list.
    pub(crate) fn finish(mut self, device: &Device) -> Result<Program<R>> {
        self.hear(device);
        if let Some(error) = self.refusal(device) {
            return Err(error);
        }
        if let Some(outermost) = self.open.pop() {
            self.program.outermost = self.hold(outermost);
        }
        let Recorder { mut program, kept, taken_at, .. } = self;
        program.order_and_lifetimes(taken_at, &kept);
        Ok(program)
    }

    /// The error of the first mistake so far.
    pub(crate) fn refusal(&self, device: &Device) -> Option<Error> {
        let (visit, refused) = self.refused.as_ref()?;
        let visit = self.program.visits.get(*visit as usize);
        let region = visit.map_or(OUTSIDE_REGIONS.into(), |visit| visit.name.to_string());
        Some(refused.error(device, region))
    }

    /// Notes the first mistake.
    fn refuse(&mut self, what: Refused) {
        let visit = self.top().visit;
        self.refused.get_or_insert((visit, what));
    }

    fn top(&mut self) -> &mut Open {
        self.open.last_mut().unwrap_or_else(|| unreachable!("the outermost is open until the end"))
    }

    /// As [`Recorder::hear`]; returns the name of the first operation that was submitted.
    pub(crate) fn hear_name(&mut self, device: &Device) -> Option<&'static str> {
        device.take_trace(&mut self.heard);
        let name = self.heard.iter().find_map(|event| match event {
            TraceEvent::Operation { op, .. } => Some(op.name()),
            TraceEvent::HostCopy { name, .. } => Some(*name),
            TraceEvent::Record { .. } | TraceEvent::Wait { .. } => None,
        });
        self.hear(device);
        name
    }

    /// Adds the submissions since the last call to the list. They belong to the innermost visit.
    pub(crate) fn hear(&mut self, device: &Device) {
        let mut heard = take(&mut self.heard);
        device.take_trace(&mut heard);
        for event in heard.drain(..) {
            match event {
                TraceEvent::Operation { stream, op, accesses, scope } => {
                    // Regions set the scope when they begin, and passes again for each operation.
                    let open = self.top().visit as usize;
                    let open = self.program.visits.get(open);
                    let mut own = self.program.visits.last().into_iter().chain(open);
                    let is_own = self.program.visits.is_empty() || own.any(|visit| visit.name == scope);
                    self.entry(stream, Work::Op(op), &accesses, (!is_own).then_some(scope));
                }
                TraceEvent::HostCopy { name, accesses, .. } => {
                    let buffer = accesses
                        .reads
                        .iter()
                        .chain(&accesses.writes)
                        .next()
                        .map_or(BufferId::NOTHING, |tensor| tensor.buffer);
                    self.refuse(Refused::HostCopy(name, buffer));
                }
                TraceEvent::Record { stream, event } => self.streams.record(stream, event, self.program.length),
                TraceEvent::Wait { stream, event } => self.wait(stream, event),
            }
        }
        self.heard = heard;
    }

    fn compute(&self) -> StreamId {
        self.program.queues[0]
    }

    /// The other queue that an entry on `queue` has to wait for, up to the entry's place in the list.
    fn base(&self, queue: StreamId) -> Option<StreamId> {
        let of_region = self.open.last().map_or(self.compute(), |open| open.stream);
        base(queue, of_region, self.compute())
    }

    fn wait(&mut self, stream: StreamId, event: u64) {
        let of_region = self.top().stream;
        if !self.streams.has_recorded(event) {
            return self.refuse(Refused::UnknownEvent(stream));
        }
        let Some(reached) = self.streams.wait(stream, event) else { return };
        if stream == of_region || stream == self.compute() {
            reached.joins.iter().for_each(|&(of, until)| self.join(stream, of, until));
            self.streams.of(stream).unspent.extend(reached.joins);
        } else {
            // No join is needed yet: if the next entry comes after all entries of its base queue, that includes this
            // wait.
            self.streams.of(stream).pending.push(reached);
        }
    }

    fn join(&mut self, by: StreamId, of: StreamId, until: u32) {
        let position = self.program.length;
        self.program.joins.push(Join { position, by, of, until });
        self.program.length += 1;
        let open = self.top();
        open.items.push(Item::Join { by, of });
        open.digest.add(u64::from(by.0) << 32 | u64::from(of.0) << 8 | 3);
    }

    fn entry(&mut self, queue: StreamId, work: Work, accesses: &Accesses, label: Option<Rc<str>>) {
        let is_unused = |buffer| self.program.taken(buffer).is_some_and(|index| !self.used[index]);
        if let Some(refused) = self.of_bodies.add(&work, accesses, is_unused) {
            self.refuse(refused);
        }
        if let (Work::Op(op), Some(buffer)) = (&work, self.on_host(accesses))
            && !matches!(**op, Op::Move(_))
        {
            self.refuse(Refused::OnHost(op.name(), buffer));
        }
        let base = self.base(queue);
        let placed = base.is_none_or(|base| self.streams.knows_all(queue, base));
        for Reached { from, joins } in take(&mut self.streams.of(queue).pending) {
            if !(placed && Some(from) == base) {
                joins.iter().for_each(|&(of, until)| self.join(queue, of, until));
            }
        }
        let graph = self.top().graph;
        if let (Some(Graph { visit, stream, since }), Work::Op(op)) = (graph, &work)
            && queue != stream
            && self.streams.of(queue).forked_from(stream) <= since
        {
            self.refused.get_or_insert((visit, Refused::LeftOut(op.name(), queue)));
        }
        if !self.program.queues.contains(&queue) {
            self.program.queues.push(queue);
        }
        self.streams.submit(queue, self.program.length);
        self.program.length += 1;
        let begin = self.top().uses.len() as u32;
        for (tensors, writes) in [(&accesses.reads, false), (&accesses.writes, true)] {
            for tensor in tensors {
                let (local, base) = self.mention(tensor.buffer);
                let (start, end) = (tensor.range().start - base, tensor.range().end - base);
                self.top().uses.push(Use { local, writes, start, end });
            }
        }
        let mut digest = take(&mut self.top().digest);
        let early = self.early;
        digest.add(u64::from(queue.0) << 8 | u64::from(early) << 2 | u64::from(placed) << 1 | 1);
        digest.add_hash(&label);
        let work = match work {
            Work::Op(mut op) => {
                digest.add_hash(&discriminant(&*op));
                op.each_tensor(&mut |tensor| {
                    let (local, base) = self.mention(tensor.buffer);
                    digest.add(u64::from(local));
                    digest.add(tensor.address - base);
                    digest.add_hash(&(tensor.shape, tensor.dtype));
                    if base > 0 {
                        tensor.address -= base;
                        tensor.buffer = BufferId::placeholder(local);
                    }
                });
                Work::Op(op)
            }
            call => call,
        };
        let open = self.top();
        open.digest = digest;
        let uses = begin..open.uses.len() as u32;
        open.items.push(Item::Entry(Entry { queue, placed, work, early, label, uses }));
    }

    /// The first buffer of an entry that lies on the host.
    fn on_host(&self, accesses: &Accesses) -> Option<BufferId> {
        let is_there = |tensor: &&Tensor| {
            self.program.taken(tensor.buffer).is_some_and(|index| self.program.buffers[index].home == Home::Host)
        };
        accesses.reads.iter().chain(&accesses.writes).find(is_there).map(|tensor| tensor.buffer)
    }

    /// A buffer's number in the innermost visit, and the address from which the buffer's bytes are counted.
    fn mention(&mut self, buffer: BufferId) -> (u32, u64) {
        if let Some(index) = self.program.taken(buffer) {
            self.used[index] = true;
            return (self.local(index as u32), self.program.buffers[index].address);
        }
        let next = self.program.outside.len() as u32;
        let index = *self.outside.entry(buffer).or_insert(next);
        if index == next {
            self.program.outside.push(buffer);
            self.mentions[1].push((NONE - 1, 0));
        }
        (self.local(index | OUTSIDE), 0)
    }

    /// The number of a buffer in the innermost visit's table.
    fn local(&mut self, index: u32) -> u32 {
        let open = self.open.last_mut().unwrap_or_else(|| unreachable!("the outermost is open until the end"));
        let mention = &mut self.mentions[usize::from(index & OUTSIDE != 0)][(index & !OUTSIDE) as usize];
        if mention.0 != open.visit {
            *mention = (open.visit, open.table.len() as u32);
            open.table.push(index);
            if index & OUTSIDE != 0 {
                open.digest.add(u64::from(index));
            }
        }
        mention.1
    }

    /// Stores the body and the table of a visit that is over. Visits that do the same share one body.
    fn hold(&mut self, open: Open) -> Held {
        let Open { items, inputs, uses, own, table: mut meant, digest, .. } = open;
        let table = self.program.tables.len() as u32;
        self.program.tables.append(&mut meant);
        let known = self.bodies.entry(digest.value()).or_default();
        let mentions = self.program.tables.len() as u32 - table;
        for &body in known.iter() {
            if self.program.bodies[body as usize].inputs == inputs
                && self.program.is_same(body, &items, &uses, &own, table)
            {
                return Held { body, table };
            }
        }
        let body = self.program.bodies.len() as u32;
        known.push(body);
        self.program.bodies.push(Body { items, inputs, uses, own, table, mentions });
        Held { body, table }
    }
}
