//! A stream of the host device: work runs where it is submitted; only collectives go on meanwhile.

use std::collections::VecDeque;

use super::{Pool, run, view};
use crate::ops::Operation;
use crate::stream::Readback;
use crate::{Accesses, Element, Op, Request, Result, Tensor};

#[derive(Default)]
pub(crate) struct HostLane {
    /// Collectives under way, with their sequence numbers and what they read and write.
    pending: VecDeque<(u64, Box<dyn Request>, Accesses)>,
    started: u64,
}

impl HostLane {
    /// Collectives started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    pub(crate) fn run(&mut self, op: &Op, pool: &Pool) -> Result<()> {
        if let Op::Collective(collective) = op {
            // Transfers of unrelated memory go on side by side, as the order of a stream cannot be seen from outside.
            let accesses = collective.accesses();
            let before = self.pending.iter().rev().find(|(.., before)| before.conflicts(&accesses));
            if let Some(number) = before.map(|(number, ..)| *number) {
                self.finish_up_to(number)?;
            }
            let request = collective.start()?;
            self.started += 1;
            self.pending.push_back((self.started, request, accesses));
        } else {
            self.finish()?;
            run(op, pool);
        }
        Ok(())
    }

    pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.finish()?;
        view::write::<T>(tensor).copy_from_slice(data);
        Ok(())
    }

    pub(crate) fn read<T: Element>(&mut self, tensor: &Tensor) -> Result<Readback<T>> {
        self.finish()?;
        Ok(Readback::here(view::read::<T>(tensor).to_vec()))
    }

    /// Waits for the collectives started up to number `last`.
    pub(crate) fn finish_up_to(&mut self, last: u64) -> Result<()> {
        while self.pending.front().is_some_and(|(number, ..)| *number <= last) {
            if let Some((_, request, _)) = self.pending.pop_front() {
                request.wait()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.finish_up_to(self.started)
    }
}
