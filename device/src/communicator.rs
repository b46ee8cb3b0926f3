//! What a group of ranks is to a stream. Implementations live in the `parallel` crate.

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
}

/// A collective under way.
pub trait Request {
    /// Blocks until it is complete on this rank.
    ///
    /// # Errors
    /// [`crate::Error::Communication`] with what the library said.
    fn wait(self: Box<Self>) -> Result<()>;
}
