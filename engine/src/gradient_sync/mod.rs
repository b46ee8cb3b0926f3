//! Sums of gradients over ranks: over other parts of the batch, and over other parts of the same layer.

mod data_parallel;
mod partial;

pub(crate) use data_parallel::Reducer;
pub(crate) use partial::PartialGrads;
