//! Sums of gradients over ranks: over data-parallel ranks, and of some parameters over tensor-parallel ranks.

mod data_parallel;
mod partial_gradients;

pub(crate) use data_parallel::DataParallelSync;
pub(crate) use partial_gradients::PartialGradientSync;
