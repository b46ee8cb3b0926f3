//! A stage's place in a pipeline: its order of work, which of its tasks meet other stages, and when to begin a receive.

use std::ops::Range;

use crate::schedule::{Task, interleaved, one_f_one_b, zero_bubble};

/// Which way a transfer between stages goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Activations, to the next part of the model.
    Forward,
    /// Their gradients, to the part before.
    Backward,
}

/// One stage of a pipeline. Part `c * stages + stage` of the model is its chunk `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineStage {
    /// Stages of the pipeline.
    pub stages: usize,
    /// Which one this is.
    pub stage: usize,
    /// Chunks of layers that each stage has.
    pub chunks: usize,
    /// With several chunks, microbatches that go through one chunk before the next; at least `stages`.
    pub group: usize,
    /// With one chunk: backwards are split, see [`zero_bubble`].
    pub zero_bubble: bool,
}

impl PipelineStage {
    /// The only stage, with all layers.
    pub fn alone() -> PipelineStage {
        PipelineStage { stages: 1, stage: 0, chunks: 1, group: 1, zero_bubble: false }
    }

    /// Parts that the model is cut into.
    pub fn parts(self) -> usize {
        self.stages * self.chunks
    }

    /// The part of the model that is a chunk of this stage.
    pub fn part(self, chunk: usize) -> usize {
        chunk * self.stages + self.stage
    }

    /// Whether a step can have so many microbatches. With several chunks a group, and the rest after the last whole one,
    /// is at least as many as there are stages, and no schedule splits backwards.
    pub fn takes(self, microbatches: usize) -> bool {
        if self.zero_bubble && self.chunks > 1 {
            return false;
        }
        let rest = microbatches.checked_rem(self.group).unwrap_or(1);
        self.chunks == 1 || (self.stages..=microbatches).contains(&self.group) && (rest == 0 || rest >= self.stages)
    }

    /// The tasks of a step in order; none where it cannot have so many microbatches.
    pub fn order(self, microbatches: usize) -> Option<Vec<Task>> {
        let PipelineStage { stages, stage, chunks, group, zero_bubble: split } = self;
        self.takes(microbatches).then(|| match chunks {
            1 if split => zero_bubble(stages, stage, microbatches),
            1 => one_f_one_b(stages, stage, microbatches),
            _ => interleaved(stages, stage, chunks, microbatches, group),
        })
    }

    /// Whether a task begins with what another stage sends.
    pub fn receives(self, task: Task) -> bool {
        match task.direction() {
            Some(Direction::Forward) => self.part(task.chunk()) > 0,
            Some(Direction::Backward) => self.part(task.chunk()) + 1 < self.parts(),
            None => false,
        }
    }

    /// Whether what a task makes goes to another stage.
    pub fn sends(self, task: Task) -> bool {
        match task.direction() {
            Some(Direction::Forward) => self.part(task.chunk()) + 1 < self.parts(),
            Some(Direction::Backward) => self.part(task.chunk()) > 0,
            None => false,
        }
    }

    /// Buffers that arrivals in one direction need. Where the last stage feeds the first one's next chunk, arrivals wait
    /// until the first has taken its whole group through the chunk before; the other way round for gradients.
    pub fn landing_buffers(self, direction: Direction) -> usize {
        let turns = match direction {
            Direction::Forward => self.stage == 0,
            Direction::Backward => self.stage + 1 == self.stages,
        };
        if turns && self.chunks > 1 { self.group - self.stages + 1 } else { 1 }
    }

    /// The receives of one direction over a step.
    pub fn arrivals(self, direction: Direction, order: &[Task]) -> Arrivals {
        let due = |(_, task): &(usize, &Task)| task.direction() == Some(direction) && self.receives(**task);
        let tasks = order.iter().enumerate().filter(due).map(|(at, _)| at).collect();
        Arrivals { tasks, buffers: self.landing_buffers(direction), begun: 0, taken: 0 }
    }
}

/// The receives of one direction over a step, in the order of the tasks that take them, and so of the sends.
///
/// With one buffer a receive begins one task before the task that takes it: early enough to hide behind a task, late
/// enough not to hold a GPU's multiprocessors for long. With more buffers it begins as soon as one is free, for only then
/// does the sender never wait for a task of this stage that waits for the sender.
pub struct Arrivals {
    /// Places in the stage's order of the tasks that receive.
    tasks: Vec<usize>,
    buffers: usize,
    begun: usize,
    taken: usize,
}

impl Arrivals {
    /// The receives to begin now, when the task at `next` is the next to begin; they are then begun.
    pub fn begin(&mut self, next: usize) -> Range<usize> {
        let first = self.begun;
        let free = |this: &Arrivals| this.begun < this.tasks.len() && this.begun - this.taken < this.buffers;
        while free(self) && (self.buffers > 1 || self.tasks[self.begun] <= next) {
            self.begun += 1;
        }
        first..self.begun
    }

    /// The number of the receive whose values are taken now; its buffer is free afterwards.
    pub fn take(&mut self) -> usize {
        self.taken += 1;
        self.taken - 1
    }

    /// The buffer of a receive.
    pub fn buffer(&self, number: usize) -> usize {
        number % self.buffers
    }
}
