//! A stream of the host device. Work runs on submission; only collectives run asynchronously.

use std::collections::VecDeque;
use std::ops::Range;

use super::{HostDevice, run, view};
use crate::ops::Operation;
use crate::timeline::OpenSpan;
use crate::{Accesses, Element, Op, Request, Result, Tensor};

/// A collective under way.
struct Pending {
    /// The collective's position among the stream's collectives, counted from 1.
    number: u64,
    request: Box<dyn Request>,
    accesses: Accesses,
    /// The collective's time ends when this is dropped.
    span: Option<OpenSpan>,
}

#[derive(Default)]
pub(crate) struct HostStream {
    pending: VecDeque<Pending>,
    started: u64,
}

impl HostStream {
    /// Collectives started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Runs an operation to its end, or starts a collective. `span` is dropped when the operation is done.
    pub(crate) fn run(&mut self, op: &Op, device: &HostDevice, span: Option<OpenSpan>) -> Result<()> {
        if let Op::Collective(collective) = op {
            // Transfers of unrelated memory may overlap: nobody can observe the order of a stream from outside.
            let accesses = collective.accesses();
            let before = self.pending.iter().rev().find(|before| before.accesses.conflicts(&accesses));
            if let Some(number) = before.map(|before| before.number) {
                self.finish_up_to(number)?;
            }
            let request = collective.start()?;
            self.started += 1;
            self.pending.push_back(Pending { number: self.started, request, accesses, span });
        } else {
            // A progress mark tells that work has begun. It does not wait for transfers.
            if !matches!(op, Op::ProgressMark(_)) {
                self.finish()?;
            }
            run(op, device)?;
        }
        Ok(())
    }

    pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.finish()?;
        view::write::<T>(tensor).copy_from_slice(data);
        Ok(())
    }

    pub(crate) fn read<T: Element>(&mut self, tensor: &Tensor) -> Result<Vec<T>> {
        self.finish()?;
        Ok(view::read::<T>(tensor).to_vec())
    }

    /// Copies the bytes of a part of a tensor.
    pub(crate) fn copy_out(&mut self, part: &Tensor, to: &mut [u8]) -> Result<()> {
        self.finish()?;
        to.copy_from_slice(view::read::<u8>(part));
        Ok(())
    }

    /// Whether a collective under way uses memory in that range.
    pub(crate) fn transfers_in(&self, range: &Range<u64>) -> bool {
        let inside = |tensor: &Tensor| tensor.range().start < range.end && range.start < tensor.range().end;
        self.pending.iter().any(|pending| pending.accesses.reads.iter().chain(&pending.accesses.writes).any(inside))
    }

    /// Waits for the collectives started up to number `last`.
    pub(crate) fn finish_up_to(&mut self, last: u64) -> Result<()> {
        while self.pending.front().is_some_and(|pending| pending.number <= last) {
            if let Some(Pending { request, span: _span, .. }) = self.pending.pop_front() {
                request.wait()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.finish_up_to(self.started)
    }
}
