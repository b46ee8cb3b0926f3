//! What a group of ranks is to a stream. Implementations live in the `parallel` crate.

use crate::cuda::StreamHandle;
use crate::{Result, Tensor};

/// A group of ranks that communicate in one order.
///
/// On the host a collective starts, nonblocking, where its stream reaches it, and is waited for where another stream
/// joins; both happen on the thread that owns the device. Collectives of one communicator start in submission order.
pub trait Communicator: std::fmt::Debug {
    /// Its name in errors and traces, such as `data`.
    fn name(&self) -> &str;

    /// This rank within the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// Starts a sum over ranks of an f32 tensor in host memory, in place.
    ///
    /// The memory must not be touched before the returned request has been waited for.
    ///
    /// # Errors
    /// [`crate::Error::Communication`] with what the library said.
    fn start_all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Request>>;

    /// Enqueues a sum over ranks of a tensor in the memory of a CUDA device, in place, or has it recorded while the
    /// stream captures.
    ///
    /// # Errors
    /// [`crate::Error::Communication`] with what the library said; communicators of the host refuse.
    fn enqueue_all_reduce_sum(&self, tensor: &Tensor, _stream: StreamHandle) -> Result<()> {
        let problem = format!("{self:?} reduces host memory, and {:?} is a GPU's", tensor.shape);
        Err(crate::Error::operation("all_reduce", problem))
    }

    /// Fails if a collective has failed since, without waiting for any.
    ///
    /// # Errors
    /// [`crate::Error::Communication`] with what the library said.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A collective under way.
pub trait Request {
    /// Blocks until it is complete on this rank.
    ///
    /// # Errors
    /// [`crate::Error::Communication`] with what the library said.
    fn wait(self: Box<Self>) -> Result<()>;
}
