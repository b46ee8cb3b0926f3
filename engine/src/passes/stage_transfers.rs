//! Transfers between stages begin early, but a receive only about one task ahead: until it ends it occupies
//! multiprocessors.
//!
//! Each end of a link has a queue of its own, so no transfer waits for another one. A send begins after the work that
//! computed its values. Only the next send in its direction, and the end of the step, wait for it. In the code a task
//! receives and at once copies the values out of the receive buffer. The pass begins the receive about one task
//! earlier, see [`ReceiveQueue`]: after the task before has copied its own values out. (A receive cannot write to the
//! microbatch's slot: the microbatch before may still use it.)
//!
//! Order that it removes: layers do not wait for sends and receives, but for the copies out of receive buffers.

use std::rc::Rc;

use device::Op;
use graph_manager::{Piece, PieceEntry, StepPass, Then};
use parallel::{Direction, PipelineStage, ReceiveQueue, Task};

use super::name::PassName;
use super::task_walk::TaskWalk;
use crate::batch_sizes::BatchSizes;
use crate::pipeline::{Link, Pipeline};
use crate::regions::Region;

/// The pass, with the receives that have begun in a step.
pub(crate) struct StageTransfers {
    stage: PipelineStage,
    tasks: Vec<Task>,
    walk: TaskWalk,
    /// Forwards run aside.
    overlaps: bool,
    /// Receives begin ahead. Without that, transfers only have their queues.
    ahead: bool,
    forward: Receives,
    backward: Receives,
}

/// The receives of one direction.
struct Receives {
    link: Rc<Link>,
    /// The sizes of the step's microbatches.
    sizes: BatchSizes,
    /// When each is due.
    due: ReceiveQueue,
    /// Receives that have begun and that the code has not submitted yet.
    begun: Vec<Op>,
}

const BOTH: [Direction; 2] = [Direction::Forward, Direction::Backward];

impl StageTransfers {
    /// The pass for the tasks of a step, with microbatches of `sizes`. `overlaps` says that its forwards run
    /// aside.
    pub(crate) fn new(
        pipeline: &Pipeline,
        sizes: BatchSizes,
        tasks: &[Task],
        walk: TaskWalk,
        overlaps: bool,
        ahead: bool,
    ) -> StageTransfers {
        let stage = pipeline.stage();
        let [forward, backward] = BOTH.map(|direction| Receives {
            link: pipeline.link(direction).clone(),
            sizes,
            due: stage.receive_queue(direction, tasks),
            begun: Vec::new(),
        });
        StageTransfers { stage, tasks: tasks.to_vec(), walk, overlaps, ahead, forward, backward }
    }

    /// Begins the receives that are due when so many tasks have begun.
    fn begin(&mut self, piece: &mut Piece<Region>, begun: usize, directions: &[Direction]) {
        for direction in directions {
            let receives = match direction {
                Direction::Forward => &mut self.forward,
                Direction::Backward => &mut self.backward,
            };
            receives.begin(piece, begun);
        }
    }

    /// Begins the receives for later tasks, if a task has just begun or has just copied the task's values out of the
    /// receive buffer. If forwards run aside, the lane aside reads the buffers of activations, so receives of
    /// activations begin there.
    fn begin_ahead(&mut self, piece: &mut Piece<Region>) {
        let here: &[Direction] = match (self.overlaps, piece.is_aside()) {
            (false, _) => &BOTH,
            (true, true) => &BOTH[..1],
            (true, false) => &BOTH[1..],
        };
        let current = self.walk.ended();
        let copies = matches!(piece.region(), Region::Inputs { .. } | Region::OutputGradients { .. });
        if copies && piece.then() == Then::End {
            self.begin(piece, current + 1, here);
        }
        let Some(ended) = self.walk.reach(piece) else { return };
        if ended == 0 {
            // Nothing is being read, so receives of activations need not begin aside.
            self.begin(piece, 0, &BOTH);
        }
        let Some(&next) = self.tasks.get(ended) else {
            let sends = [&self.forward, &self.backward].into_iter().filter_map(|receives| receives.link.send.as_ref());
            return piece.joins.extend(sends.map(|end| end.queue.clone()));
        };
        let copies_later = match next {
            Task::Backward { .. } => self.stage.receives(next),
            Task::Forward { .. } => !self.overlaps,
            Task::Weights { .. } => false,
        };
        if !copies_later {
            self.begin(piece, ended + 1, here);
        }
    }
}

impl Receives {
    fn begin(&mut self, piece: &mut Piece<Region>, begun: usize) {
        let Some(end) = &self.link.receive else { return };
        for number in self.due.begin(begun) {
            let receive = Op::from(end.receive(self.due.buffer(number), self.sizes));
            let mut entry = PieceEntry::ahead(receive.clone());
            // Timelines show it under a name of its own: its values are for a later task.
            entry.label = Some(format!("{} receive {number}", end.name).into());
            entry.put_on(&end.queue);
            piece.entries.push(entry);
            self.begun.push(receive);
        }
    }

    /// Takes a receive that has begun out of the receive's place.
    fn take(&mut self, entries: &mut Vec<PieceEntry>) {
        if let Some(at) = entries.iter().position(|entry| self.begun.first() == Some(entry.op())) {
            entries.remove(at);
            self.begun.remove(0);
            self.due.take();
        }
    }
}

impl StepPass<Region> for StageTransfers {
    fn name(&self) -> &'static str {
        PassName::StageTransfers.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        for entry in &mut piece.entries {
            let Op::Collective(transfer) = entry.op() else { continue };
            let links = [&self.forward.link, &self.backward.link];
            if let Some(queue) = links.into_iter().find_map(|link| link.queue_of(transfer)).cloned() {
                entry.put_on(&queue);
            }
        }
        if self.ahead {
            self.forward.take(&mut piece.entries);
            self.backward.take(&mut piece.entries);
            self.begin_ahead(piece);
        }
    }
}
