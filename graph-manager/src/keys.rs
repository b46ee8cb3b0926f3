//! The keys of a manager's tables.

use crate::options::Mempool;

/// A kind of step that has a separate plan and separate graphs: a mode, and the number of microbatches if memory is
/// planned over the whole step.
pub(crate) type StepKey<M> = (M, Option<usize>);

/// The kind of a step with so many microbatches. Slots hold any number of them.
pub(crate) fn step_key<M>(mempool: Mempool, mode: M, microbatches: usize) -> StepKey<M> {
    (mode, (mempool == Mempool::Single).then_some(microbatches))
}

/// A region in the memory plan: microbatches that share a slot have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RegionKey<R> {
    /// With a slot, the region of microbatch 0.
    pub(crate) region: R,
    /// `None` if there are no slots, or if the region belongs to no microbatch.
    pub(crate) slot: Option<usize>,
}

/// Tells the graphs of one kind of step apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphKey<R> {
    pub(crate) region: RegionKey<R>,
    /// A digest of the region's operations and of the places of the operations' buffers. A region may do other work in
    /// some microbatches, such as overwrite in the first. Then it has several graphs.
    pub(crate) digest: u64,
}
