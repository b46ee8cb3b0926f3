//! Passes decide on the time and the queue of the operations that a step's code submits. The code is mathematics alone.
//!
//! A pass gets the step piece by piece, before it becomes the list. It may move operations within a piece, keep some
//! for a later piece, and put them on other queues. Two operations that meet in memory must not change places: that is
//! refused. It may also add moves: see [`PieceEntry::moves`].

mod copies;
mod moved;
mod piece;
mod sums;

use std::cell::RefCell;
use std::fmt::Display;

use device::{Accesses, Op};

use crate::code::StepContext;
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::side_stream::Fork;
use moved::Moved;
pub(crate) use piece::DoneIn;
use piece::TakenByPass;
pub use piece::{Piece, PieceEntry, Then};
pub(crate) use sums::Sums;

/// Decides on the time of operations.
pub trait StepPass<R> {
    /// The pass's name in errors and reports.
    fn name(&self) -> &'static str;

    /// Whether a region, with the regions inside, runs on the second lane: in turn with other regions there, after all
    /// earlier work, and next to later work. Their transfers need communicators of their own: two transfers under way
    /// at once on one communicator might start in another order on another rank, and wait for each other for ever.
    fn runs_aside(&mut self, _region: R) -> bool {
        false
    }

    /// Changes a piece. It may take entries out, and put them in a later piece of the step. It may also begin
    /// operations of a later piece: see [`PieceEntry::ahead`].
    fn apply(&mut self, piece: &mut Piece<R>);
}

/// The passes of a step that is recorded.
pub(crate) struct Passes<R> {
    all: RefCell<Vec<Watched<R>>>,
    /// The operations that the innermost region has submitted since the last piece.
    entries: RefCell<Vec<PieceEntry>>,
    /// The first error of a piece that could not be returned at once.
    error: RefCell<Option<Error>>,
}

/// A pass, and the operations that the pass has moved.
type Watched<R> = (Box<dyn StepPass<R>>, Moved<R>);

impl<R: Copy + Display> Passes<R> {
    pub(crate) fn none() -> Passes<R> {
        Passes { all: RefCell::default(), entries: RefCell::default(), error: RefCell::default() }
    }

    /// Keeps an error, for the end of the next piece to return.
    pub(crate) fn note(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// After a region has failed: drops the operations that it has submitted since the last piece.
    pub(crate) fn drop_entries(&self) {
        self.entries.borrow_mut().clear();
    }

    /// Fails if work meets operations that a pass keeps or has begun ahead. Passes do not get this work: it takes its
    /// place in the list now.
    pub(crate) fn check_direct(&self, region: Option<R>, name: &'static str, accesses: &Accesses) -> Result<()> {
        let Some(region) = region else { return Ok(()) };
        let mut all = self.all.borrow_mut();
        all.iter_mut().try_for_each(|(pass, moved)| moved.check_direct(pass.name(), region, name, accesses))
    }

    /// Fails if a pass has kept operations of the recorded step back.
    pub(crate) fn check_end(&self) -> Result<()> {
        self.all.borrow().iter().try_for_each(|(pass, moved)| moved.check_end(pass.name()))
    }
}

impl<P: Policy> StepContext<'_, P> {
    /// Has passes decide on the time of all operations that regions submit from here on. Each pass gets the result of
    /// the one before it.
    pub fn set_passes(&mut self, passes: Vec<Box<dyn StepPass<P::Region>>>) {
        self.passes.all.replace(passes.into_iter().map(|pass| (pass, Moved::default())).collect());
    }

    /// Adds an operation to the current piece, for the passes.
    pub(crate) fn give(&self, op: Op, done_in: DoneIn) -> Result<()> {
        op.check()?;
        let mut recorder = self.recorder.borrow_mut();
        recorder.check_status(&op)?;
        if self.passes.entries.borrow().is_empty() {
            recorder.hear(self.manager.pool.device());
        }
        let entry = PieceEntry::new(op, done_in, |buffer| recorder.takes(buffer));
        self.passes.entries.borrow_mut().push(entry);
        Ok(())
    }

    /// Whether passes get the operations that are submitted here.
    pub(crate) fn has_passes(&self) -> bool {
        self.current.is_some() && !self.passes.all.borrow().is_empty()
    }

    /// Whether a pass puts a region on the second lane.
    pub(crate) fn runs_aside(&self, region: P::Region) -> bool {
        self.passes.all.borrow_mut().iter_mut().any(|(pass, _)| pass.runs_aside(region))
    }

    /// Gives the passes the operations that the innermost region has submitted since the last piece, and submits the
    /// result.
    pub(crate) fn end_piece(&self, then: Then) -> Result<()> {
        let Some(current) = self.current.as_ref().filter(|_| self.has_passes()) else { return Ok(()) };
        if let Some(error) = self.passes.error.take() {
            return Err(error);
        }
        let mut piece = Piece {
            region: current.region,
            begins: current.begins.replace(false),
            is_aside: self.is_aside,
            then,
            device: self.manager.pool.device().clone(),
            name: self.recorder.borrow().name(current.visit),
            taken: Vec::new(),
            entries: self.passes.entries.take(),
            joins: Vec::new(),
            joins_aside: false,
        };
        self.check_overtaken(&piece)?;
        for (pass, moved) in self.passes.all.borrow_mut().iter_mut() {
            moved.number(&mut piece.entries);
            pass.apply(&mut piece);
            moved.check(pass.name(), &piece, current.microbatch)?;
            for TakenByPass { name, tensor, home } in piece.taken.drain(..) {
                self.recorder.borrow_mut().take(&piece.device, name, &tensor, home);
            }
        }
        let (device, name) = (self.manager.pool.device(), piece.name);
        if piece.joins_aside {
            Fork::under_way(self.manager.pool.lane()).join(self.stream())?;
        }
        for entry in piece.entries {
            let early = entry.is_early();
            if early {
                self.recorder.borrow_mut().hear(device);
            }
            if let Some(queue) = &entry.waits_for {
                Fork::under_way(queue).join(self.stream())?;
            }
            device.set_scope(entry.label.as_ref().unwrap_or(&name));
            let (op, queue) = entry.into_parts();
            match queue {
                None => self.stream().submit(op)?,
                Some(queue) => Fork::start(&queue, self.stream(), vec![op])?.leave(),
            }
            if early {
                self.recorder.borrow_mut().hear_early(device);
            }
        }
        piece.joins.iter().try_for_each(|queue| Ok(Fork::under_way(queue).join(self.stream())?))
    }

    /// Fails if work was submitted to streams directly while operations wait for the passes: it would come before them.
    fn check_overtaken(&self, piece: &Piece<P::Region>) -> Result<()> {
        if piece.entries.is_empty() {
            return Ok(());
        }
        let (device, mut recorder) = (self.manager.pool.device(), self.recorder.borrow_mut());
        let Some(name) = recorder.hear_name(device) else { return Ok(()) };
        // On a stream that the graph does not include, the order is not the mistake.
        if let Some(error) = recorder.refusal(device) {
            return Err(error);
        }
        let problem = format!(
            "{}: `{name}` was submitted to a stream directly, and would come before what the region submitted by \
             StepContext::run",
            piece.region
        );
        Err(Error::usage(problem, "call StepContext::compute before: its stream has been given all that comes before"))
    }
}
