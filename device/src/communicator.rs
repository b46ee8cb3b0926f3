//! What a group of ranks is to a stream. Implementations live in the `parallel` crate.

use crate::{Error, Result, Tensor};

/// Which transfer between the ranks of a communicator. Ranks are numbers within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Every rank ends with the sum over ranks, elementwise.
    AllReduceSum,
    /// Every rank ends with all ranks' inputs, one after the other in rank order.
    AllGather,
    /// The sum over ranks is cut into as many equal parts as ranks, and each ends with its own.
    ReduceScatterSum,
    /// To another rank, which receives it.
    Send {
        /// To whom.
        to: usize,
    },
    /// From another rank, which sends it.
    Receive {
        /// From whom.
        from: usize,
    },
}

impl CollectiveKind {
    /// Its name in errors, reports and traces.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduceSum => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatterSum => "reduce_scatter",
            CollectiveKind::Send { .. } => "send",
            CollectiveKind::Receive { .. } => "receive",
        }
    }

    /// The rank it is sent to.
    pub fn receiver(self) -> Option<usize> {
        match self {
            CollectiveKind::Send { to } => Some(to),
            _ => None,
        }
    }

    /// The rank it comes from.
    pub fn sender(self) -> Option<usize> {
        match self {
            CollectiveKind::Receive { from } => Some(from),
            _ => None,
        }
    }
}

/// A CUDA stream of the device's, for libraries that enqueue work on it themselves.
#[derive(Clone, Copy, Debug)]
pub struct StreamHandle(pub *mut std::ffi::c_void);

/// A group of ranks that communicate in one order.
///
/// On the host a transfer starts, nonblocking, where its stream reaches it, and is waited for where something comes after
/// it; both happen on the thread that owns the device. Transfers of one communicator start in submission order.
pub trait Communicator: std::fmt::Debug {
    /// Its name in errors and traces, such as `data`.
    fn name(&self) -> &str;

    /// This rank within the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// Makes the connection from each rank to the next, all ranks of the group together. Where it is left to the first
    /// transfer, the host waits there for the other rank's.
    ///
    /// # Errors
    /// [`Error::Communication`] with what the library said.
    fn open(&self) -> Result<()> {
        Ok(())
    }

    /// Starts a transfer between tensors in host memory, f32 or bf16; bf16 is summed in f32 and rounded once.
    ///
    /// What `input` holds is taken at once. Neither tensor's memory may be touched before the returned request has been
    /// waited for. A send completes when its receiver has come.
    ///
    /// # Errors
    /// [`Error::Communication`] with what the library said.
    fn start(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor) -> Result<Box<dyn Request>>;

    /// Enqueues a transfer between tensors in the memory of a CUDA device, or has it recorded while the stream captures.
    ///
    /// # Errors
    /// [`Error::Communication`] with what the library said; communicators of the host refuse.
    fn enqueue(&self, kind: CollectiveKind, input: &Tensor, _output: &Tensor, _stream: StreamHandle) -> Result<()> {
        let problem = format!("{self:?} transfers host memory, and {:?} is a GPU's", input.shape);
        Err(Error::operation(kind.name(), problem))
    }

    /// World ranks of the group, in its order. Ranks of one group agree.
    fn members(&self) -> Vec<usize> {
        (0..self.size()).collect()
    }

    /// What another thread can ask while this one waits; none where a failure ends the wait by itself.
    fn probe(&self) -> Option<Probe> {
        None
    }
}

/// Fails if a transfer has failed since, without waiting for any: with [`Error::Communication`] and what the library said.
pub type Probe = Box<dyn Fn() -> Result<()> + Send>;

/// A transfer under way.
pub trait Request {
    /// Blocks until it is complete on this rank.
    ///
    /// # Errors
    /// [`Error::Communication`] with what the library said.
    fn wait(self: Box<Self>) -> Result<()>;
}
