//! The pieces of a step's code that a pass gets.

use std::rc::Rc;

use device::ops::Move;
use device::{Accesses, BufferId, BufferName, Communicator, Device, Home, Op, Tensor};

use crate::side_stream::SideStream;

/// Operations that a region's code submits up to the region's next inner region, fork, join or host call, or up to the
/// end, in the order of the list.
pub struct Piece<R> {
    pub(super) region: R,
    pub(super) begins: bool,
    pub(super) is_aside: bool,
    pub(super) then: Then,
    pub(super) device: Device,
    /// The region's name.
    pub(super) name: Rc<str>,
    /// The buffers that the pass has taken.
    pub(super) taken: Vec<TakenByPass>,
    /// The operations.
    pub entries: Vec<PieceEntry>,
    /// The queues that all work after the piece waits for.
    pub joins: Vec<Rc<SideStream>>,
    /// Whether the piece, and all later work, waits for the second lane.
    pub joins_aside: bool,
}

/// A buffer that a pass has taken, to move a tensor there.
pub(super) struct TakenByPass {
    pub(super) name: &'static str,
    pub(super) tensor: Tensor,
    pub(super) home: Home,
}

/// The event that ends a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The beginning of an inner region.
    Inner,
    /// The region's code goes on: it forks, joins, calls the host, or asks for the stream.
    More,
    /// The region ends.
    End,
}

impl<R: Copy> Piece<R> {
    /// The region whose code makes the piece.
    pub fn region(&self) -> R {
        self.region
    }

    /// Whether the piece is the region's first.
    pub fn begins(&self) -> bool {
        self.begins
    }

    /// Whether the piece's region runs on the second lane.
    pub fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// The event that ends the piece.
    pub fn then(&self) -> Then {
        self.then
    }

    /// A buffer of the piece's region like `tensor`, in the device's memory or the host's. The pass fills it by one
    /// [move](PieceEntry::moves). It lives until its last use.
    pub fn buffer_like(&mut self, tensor: &Tensor, home: Home, name: &'static str) -> Tensor {
        let tensor =
            self.device.virtual_tensor(BufferName::Within(self.name.clone(), name), tensor.shape, tensor.dtype);
        self.taken.push(TakenByPass { name, tensor, home });
        tensor
    }
}

/// The steps that do an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoneIn {
    /// All steps.
    AllSteps,
    /// The first steps alone; later steps use the result. See
    /// [`StepContext::run_early`](crate::StepContext::run_early).
    FirstSteps,
}

/// An operation of a piece.
pub struct PieceEntry {
    op: Rc<Op>,
    done_in: DoneIn,
    accesses: Rc<Accesses>,
    /// See [`PieceEntry::writes_outside`].
    outside: bool,
    /// The entry's name in timelines; `None` for the region's name.
    pub label: Option<Rc<str>>,
    /// `None` for the region's own.
    queue: Option<Rc<SideStream>>,
    /// The entry's place in the order that the pass was given, from 1; 0 for an entry of the pass's own.
    pub(super) number: u64,
    /// Whether the pass has made the entry, to move a tensor.
    pub(super) moves: bool,
    /// See [`PieceEntry::wait_for`].
    pub(super) waits_for: Option<Rc<SideStream>>,
}

impl PieceEntry {
    /// `is_taken` tells whether a region takes a buffer.
    pub(super) fn new(op: Op, done_in: DoneIn, is_taken: impl Fn(BufferId) -> bool) -> PieceEntry {
        let accesses = Rc::new(op.accesses());
        let outside = !accesses.writes.iter().any(|tensor| is_taken(tensor.buffer));
        let (op, label) = (Rc::new(op), None);
        PieceEntry { op, done_in, accesses, outside, label, queue: None, number: 0, moves: false, waits_for: None }
    }

    /// An operation that the code will submit later, and that is to begin here. The pass has to take it out of the
    /// later piece. It uses no buffer of a region.
    pub fn ahead(op: impl Into<Op>) -> PieceEntry {
        PieceEntry::new(op.into(), DoneIn::AllSteps, |_| false)
    }

    /// A move of a tensor to a buffer that the pass has [taken](Piece::buffer_like), or from there back to the tensor's
    /// old place. Without its moves, and with each copy named as the tensor that it is a copy of, the list must be one
    /// that the pass might have made without moves.
    pub fn moves(op: Move) -> PieceEntry {
        PieceEntry { moves: true, outside: false, ..PieceEntry::new(op.into(), DoneIn::AllSteps, |_| false) }
    }

    /// Replaces the tensor `of`, and tensors within `of`, by a copy that a move has made.
    pub fn use_copy(&mut self, of: &Tensor, copy: &Tensor) {
        let whole = of.range();
        let is_part =
            |part: &Tensor| part.buffer == of.buffer && whole.start <= part.address && part.range().end <= whole.end;
        if !self.accesses.reads.iter().chain(&self.accesses.writes).any(is_part) {
            return;
        }
        Rc::make_mut(&mut self.op).each_tensor(&mut |tensor| {
            if is_part(tensor) {
                (tensor.address, tensor.buffer) = (copy.address + (tensor.address - of.address), copy.buffer);
            }
        });
        self.accesses = Rc::new(self.op.accesses());
    }

    /// The operation.
    pub fn op(&self) -> &Op {
        &self.op
    }

    pub(super) fn shared_op(&self) -> &Rc<Op> {
        &self.op
    }

    /// The tensors that the operation reads and writes.
    pub fn accesses(&self) -> &Rc<Accesses> {
        &self.accesses
    }

    /// Whether the operation writes only memory that outlives the step. Such memory is in no region's buffers.
    pub fn writes_outside(&self) -> bool {
        self.outside
    }

    /// Whether only the first steps do the operation; later steps use the result.
    pub(super) fn is_early(&self) -> bool {
        self.done_in == DoneIn::FirstSteps
    }

    /// Whether one of the two writes bytes that the other reads or writes. Their order in the list must stay.
    pub fn conflicts_with(&self, other: &PieceEntry) -> bool {
        self.accesses.conflicts(&other.accesses)
    }

    /// Whether the operation is a transfer by `communicator`.
    pub fn is_transfer_of(&self, communicator: &Rc<dyn Communicator>) -> bool {
        matches!(&*self.op, Op::Collective(transfer) if Rc::ptr_eq(&transfer.communicator, communicator))
    }

    /// The operation's queue; `None` for the region's own queue.
    pub fn queue(&self) -> Option<&Rc<SideStream>> {
        self.queue.as_ref()
    }

    /// Puts the operation on a queue. It starts there after all earlier work on the region's own queue.
    pub fn put_on(&mut self, queue: &Rc<SideStream>) {
        self.queue = Some(queue.clone());
    }

    /// Before this operation the region's own queue waits for all that the piece has put on another queue so far. Buffers
    /// that only
    /// that queue used are free from here on.
    pub fn wait_for(&mut self, queue: &Rc<SideStream>) {
        self.waits_for = Some(queue.clone());
    }

    /// Has a transfer use a twin of the transfer's communicator: the same ranks. Does nothing for other operations.
    pub fn change_communicator(&mut self, twin: &Rc<dyn Communicator>) {
        if let Op::Collective(transfer) = Rc::make_mut(&mut self.op) {
            transfer.communicator = twin.clone();
        }
    }

    pub(super) fn into_parts(self) -> (Op, Option<Rc<SideStream>>) {
        (Rc::unwrap_or_clone(self.op), self.queue)
    }
}
