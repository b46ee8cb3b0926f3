//! Sums of gradients over ranks: over data-parallel ranks, and with sequence parallelism over tensor-parallel ranks.

mod data_parallel;
mod sequence_parallel;

pub(crate) use data_parallel::DataParallelSync;
pub(crate) use sequence_parallel::SequenceParallelSync;
