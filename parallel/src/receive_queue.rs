//! The times at which a stage begins receives.

use std::ops::Range;

/// The receives of one direction in a step. They are numbered in the order of the tasks that take them. The sends have
/// the same order.
///
/// With one buffer, a receive begins one task before the task that takes it, or one pair if tasks overlap: early enough
/// to overlap with work, late enough not to occupy a GPU's multiprocessors for long. With more buffers, it begins as
/// soon as a buffer is free: only then does the sender never wait for a task of this stage that itself waits for the
/// sender.
pub struct ReceiveQueue {
    /// Positions of the receiving tasks in the stage's order.
    receivers: Vec<usize>,
    buffers: usize,
    /// How many tasks ahead a receive may begin.
    ahead: usize,
    /// The number of receives that have begun, and the number of receives with values taken.
    begun: usize,
    taken: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(receivers: Vec<usize>, buffers: usize, ahead: usize) -> ReceiveQueue {
        ReceiveQueue { receivers, buffers, ahead, begun: 0, taken: 0 }
    }

    /// The numbers of the receives to begin now, when `begun_tasks` tasks of the step have begun. They count as begun
    /// afterwards.
    pub fn begin(&mut self, begun_tasks: usize) -> Range<usize> {
        let first = self.begun;
        while self.begun < self.receivers.len()
            && self.begun - self.taken < self.buffers
            && (self.buffers > 1 || self.receivers[self.begun] < begun_tasks + self.ahead)
        {
            self.begun += 1;
        }
        first..self.begun
    }

    /// Takes the values of the next receive, and returns the receive's number. Its buffer is free afterwards.
    pub fn take(&mut self) -> usize {
        self.taken += 1;
        self.taken - 1
    }

    /// The buffer of a receive.
    pub fn buffer(&self, receive: usize) -> usize {
        receive % self.buffers
    }
}
