//! Passes: they decide when the operations of a step's code run, and on which queue. The code says what is computed.
//!
//! A pass gets the step piece by piece, before it becomes the list. It may move operations within a piece, keep some for a
//! later piece, and put them on other queues. Two operations that meet in memory must not change places: that is refused.

mod moved;
mod piece;
mod sums;

use std::cell::RefCell;

use device::Op;

use crate::context::StepContext;
use crate::error::Result;
use crate::policy::Policy;
use crate::side_stream::Fork;
use moved::Moved;
pub use piece::{Piece, PieceEntry, Then};
pub(crate) use sums::Sums;

/// Decides on the time of operations.
pub trait StepPass<R> {
    /// What errors and reports call it.
    fn name(&self) -> &'static str;

    /// Whether a region, and those inside it, run on the second lane: in turn with other regions there, after what comes before
    /// them, and next to what follows. Their transfers need communicators of their own: two that are under way at once on one
    /// communicator might start in another order on another rank, and wait for each other for ever.
    fn runs_aside(&mut self, _region: R) -> bool {
        false
    }

    /// Changes a piece. It may take entries out, and put them in a later piece of the step; or begin what comes in a later
    /// piece, as [`PieceEntry::ahead`] says.
    fn apply(&mut self, piece: &mut Piece<R>);
}

/// The passes of a step that is recorded.
pub(crate) struct Passes<R> {
    all: RefCell<Vec<(Box<dyn StepPass<R>>, Moved<R>)>>,
    /// What the innermost region has submitted since the last piece.
    entries: RefCell<Vec<PieceEntry>>,
}

impl<R> Passes<R> {
    pub(crate) fn none() -> Passes<R> {
        Passes { all: RefCell::default(), entries: RefCell::default() }
    }
}

impl<P: Policy> StepContext<'_, P> {
    /// Has passes decide on the time of what regions submit from here on, one pass after the other.
    pub fn set_passes(&mut self, passes: Vec<Box<dyn StepPass<P::Region>>>) {
        self.passes.all.replace(passes.into_iter().map(|pass| (pass, Moved::default())).collect());
    }

    /// Submits an operation to the stream of the current region, or leaves it to the passes.
    pub(crate) fn give(&self, op: Op, early: bool) -> Result<()> {
        op.check()?;
        self.recorder.borrow().check_clipped(&op)?;
        let entry = PieceEntry::new(op, early, |buffer| self.recorder.borrow().takes(buffer));
        self.passes.entries.borrow_mut().push(entry);
        Ok(())
    }

    /// Whether passes decide on what is submitted here.
    pub(crate) fn has_passes(&self) -> bool {
        self.current.is_some() && !self.passes.all.borrow().is_empty()
    }

    /// Whether a pass puts a region on the second lane.
    pub(crate) fn runs_aside(&self, region: P::Region) -> bool {
        self.passes.all.borrow_mut().iter_mut().any(|(pass, _)| pass.runs_aside(region))
    }

    /// Submits what the innermost region has given since the last piece, as the passes say.
    pub(crate) fn end_piece(&self, then: Then) -> Result<()> {
        let Some(current) = self.current.as_ref().filter(|_| self.has_passes()) else { return Ok(()) };
        let mut piece = Piece {
            region: current.region,
            begins: current.begins.replace(false),
            is_aside: self.is_aside,
            then,
            entries: self.passes.entries.take(),
            joins: Vec::new(),
            joins_aside: false,
        };
        for (pass, moved) in self.passes.all.borrow_mut().iter_mut() {
            moved.number(&mut piece.entries);
            pass.apply(&mut piece);
            moved.check(pass.name(), piece.region, &piece.entries)?;
        }
        let (device, name) = (self.manager.pool.device(), self.recorder.borrow().name(current.visit));
        for entry in piece.entries {
            if entry.is_early() {
                self.recorder.borrow_mut().hear(device);
            }
            let early = entry.is_early();
            device.set_scope(entry.label.as_ref().unwrap_or(&name));
            let (op, queue) = entry.into_parts();
            match queue {
                None => self.compute().submit(op)?,
                Some(queue) => Fork::start(&queue, self.compute(), vec![op])?.leave(),
            }
            if early {
                self.recorder.borrow_mut().hear_early(device);
            }
        }
        let aside = piece.joins_aside.then(|| self.manager.pool.lane());
        piece.joins.iter().chain(aside).try_for_each(|queue| Ok(Fork::under_way(queue).join(self.compute())?))
    }

    /// Fails if a pass has kept operations of the recorded step for itself.
    pub(crate) fn check_moved(&self) -> Result<()> {
        self.passes.all.borrow().iter().try_for_each(|(pass, moved)| moved.check_end(pass.name()))
    }
}
