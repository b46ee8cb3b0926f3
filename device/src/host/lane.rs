//! A stream of the host device: work runs where it is submitted; only collectives go on meanwhile.

use std::collections::VecDeque;

use super::{Pool, run, view};
use crate::ops::Operation;
use crate::stream::Readback;
use crate::timeline::Note;
use crate::{Accesses, Element, Op, Request, Result, Tensor};

/// A collective under way.
struct Pending {
    /// Its place among the stream's collectives, from 1.
    number: u64,
    request: Box<dyn Request>,
    accesses: Accesses,
    /// What times it, until it is dropped.
    note: Note,
}

#[derive(Default)]
pub(crate) struct HostLane {
    pending: VecDeque<Pending>,
    started: u64,
}

impl HostLane {
    /// Collectives started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    pub(crate) fn run(&mut self, op: &Op, pool: &Pool, note: Note) -> Result<()> {
        if let Op::Collective(collective) = op {
            // Transfers of unrelated memory go on side by side, as the order of a stream cannot be seen from outside.
            let accesses = collective.accesses();
            let before = self.pending.iter().rev().find(|before| before.accesses.conflicts(&accesses));
            if let Some(number) = before.map(|before| before.number) {
                self.finish_up_to(number)?;
            }
            let request = collective.start()?;
            self.started += 1;
            self.pending.push_back(Pending { number: self.started, request, accesses, note });
        } else {
            // A mark says what has begun: transfers go on meanwhile.
            if !matches!(op, Op::Mark(_)) {
                self.finish()?;
            }
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
        while self.pending.front().is_some_and(|pending| pending.number <= last) {
            if let Some(Pending { request, note: _note, .. }) = self.pending.pop_front() {
                request.wait()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.finish_up_to(self.started)
    }
}
