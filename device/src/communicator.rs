//! Groups of ranks, as a stream sees them. Implementations are in the `parallel` crate.

use std::any::Any;
use std::ops::Range;

use crate::cuda::Peers;
use crate::ops::RowsOfRanks;
use crate::{Error, Result, Tensor};

/// A kind of transfer between the ranks of a communicator. Ranks are numbered within the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Every rank ends with the sum over ranks, elementwise.
    AllReduceSum,
    /// Every rank ends with the largest value of all ranks, elementwise.
    AllReduceMax,
    /// Every rank ends with all ranks' inputs, one after the other in rank order.
    AllGather,
    /// The sum over ranks is split into one equal part per rank, and each rank ends with its own part.
    ReduceScatterSum,
    /// Every rank ends with the input of one rank. The others have none: their input is their output.
    Broadcast {
        /// The rank with the input.
        from: usize,
    },
    /// The sum over ranks, elementwise, goes to one rank. The others have no output: their output is their input.
    ReduceSum {
        /// The rank that ends with the sum.
        to: usize,
    },
    /// Every rank's input has an equal part for each rank, in rank order. It ends with the parts that are for it, in the
    /// order of the ranks that they come from.
    AllToAll,
    /// Every rank ends with the input of the rank before it, the first one with that of the last: one step of a ring.
    ToNext,
    /// Rows go to the ranks of their experts or come back: see [`RowsOfRanks`]. GPUs do it by kernels that reach each
    /// other's memory.
    Rows(RowsOfRanks),
    /// This rank sends its input to another rank.
    Send {
        /// The receiving rank.
        to: usize,
    },
    /// This rank receives its output from another rank.
    Receive {
        /// The sending rank.
        from: usize,
    },
}

impl CollectiveKind {
    /// The transfer's name in errors, reports and traces.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduceSum => "all_reduce",
            CollectiveKind::AllReduceMax => "all_reduce_max",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatterSum => "reduce_scatter",
            CollectiveKind::Broadcast { .. } => "broadcast",
            CollectiveKind::ReduceSum { .. } => "reduce",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::ToNext => "to_next",
            CollectiveKind::Rows(rows) => rows.name(),
            CollectiveKind::Send { .. } => "send",
            CollectiveKind::Receive { .. } => "receive",
        }
    }

    /// The receiving rank of a send.
    pub fn receiver(self) -> Option<usize> {
        match self {
            CollectiveKind::Send { to } => Some(to),
            _ => None,
        }
    }

    /// The sending rank of a receive.
    pub fn sender(self) -> Option<usize> {
        match self {
            CollectiveKind::Receive { from } => Some(from),
            _ => None,
        }
    }

    /// Whether values arrive as they were sent: nothing is summed or compared.
    pub fn only_moves(self) -> bool {
        match self {
            CollectiveKind::AllGather
            | CollectiveKind::Broadcast { .. }
            | CollectiveKind::AllToAll
            | CollectiveKind::ToNext
            | CollectiveKind::Rows(_)
            | CollectiveKind::Send { .. }
            | CollectiveKind::Receive { .. } => true,
            CollectiveKind::AllReduceSum
            | CollectiveKind::AllReduceMax
            | CollectiveKind::ReduceScatterSum
            | CollectiveKind::ReduceSum { .. } => false,
        }
    }
}

/// A CUDA stream of the device, for libraries that enqueue work on it themselves.
#[derive(Clone, Copy, Debug)]
pub struct StreamHandle(pub *mut std::ffi::c_void);

/// A group of ranks with one order of transfers.
///
/// On the host a transfer starts, without blocking, when its stream reaches it. It is waited for when work that depends
/// on it is reached. Both happen on the thread that owns the device. Transfers of one communicator start in submission
/// order.
pub trait Communicator: std::fmt::Debug {
    /// The communicator's name in errors and traces, such as `data`.
    fn name(&self) -> &str;

    /// This rank within the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// Connects each rank to the next. All ranks of the group call it together. Without this call the first transfer
    /// makes the connection, and the host blocks there until the other rank does the same.
    ///
    /// # Errors
    /// [`Error::Communication`] with the library's message.
    fn open(&self) -> Result<()> {
        Ok(())
    }

    /// Starts a transfer between tensors in host memory: f32 or bf16, or 8-bit types, bytes and i32 if nothing is summed.
    /// bf16 is summed in f32 and rounded once.
    ///
    /// The transfer takes the values that `input` has now. Neither tensor's memory may be touched until the returned
    /// request has been waited for. A send completes once its receiver has begun to receive.
    ///
    /// # Errors
    /// [`Error::Communication`] with the library's message.
    fn start(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor) -> Result<Box<dyn Request>>;

    /// Enqueues a transfer between tensors in the memory of a CUDA device, or records it while the stream captures.
    ///
    /// # Errors
    /// [`Error::Communication`] with the library's message. A communicator of the host refuses.
    fn enqueue(&self, kind: CollectiveKind, input: &Tensor, _output: &Tensor, _stream: StreamHandle) -> Result<()> {
        let problem = format!("{self:?} transfers host memory, and {:?} is a GPU's", input.shape);
        Err(Error::operation(kind.name(), problem))
    }

    /// Memory through which the GPUs of the group reach each other. `None` if all transfers go through
    /// [`Communicator::enqueue`].
    fn peers(&self) -> Option<&Peers> {
        None
    }

    /// Whether the group exchanges [rows](CollectiveKind::Rows).
    fn moves_rows(&self) -> bool {
        self.peers().is_some()
    }

    /// Lets the group's other GPUs write [rows](CollectiveKind::Rows) into an area, given by its addresses, until the returned
    /// value is dropped. The area outlives that value. All ranks call it together, for areas that belong together, and drop
    /// the values together. `None` if no other GPU writes there.
    ///
    /// # Errors
    /// The driver's, on any rank.
    fn share(&self, _area: Range<u64>) -> Result<Option<SharedArea>> {
        Ok(None)
    }

    /// The world ranks of the group's members, in the group's order: the same on every member.
    fn members(&self) -> Vec<usize> {
        (0..self.size()).collect()
    }

    /// A check that another thread can make while this thread waits. `None` if a failure ends the wait by itself.
    fn probe(&self) -> Option<Probe> {
        None
    }
}

/// Holds memory that other GPUs write into. When it is dropped, it waits for all ranks: they reach the memory no more.
pub type SharedArea = Box<dyn Any>;

/// Fails with [`Error::Communication`] and the library's message if a transfer has failed. It waits for no transfer.
pub type Probe = Box<dyn Fn() -> Result<()> + Send>;

/// A transfer under way.
pub trait Request {
    /// Blocks until the transfer is complete on this rank.
    ///
    /// # Errors
    /// [`Error::Communication`] with the library's message.
    fn wait(self: Box<Self>) -> Result<()>;
}
