//! Sums of gradients over ranks: over data-parallel ranks, and of some parameters over tensor-parallel ranks.

mod copied_rows;
mod data_parallel;
mod partial_gradients;

pub(crate) use copied_rows::CopiedRowsSync;
pub(crate) use data_parallel::DataParallelSync;
pub(crate) use partial_gradients::PartialGradientSync;
