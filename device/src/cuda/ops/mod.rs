//! What operations need of a GPU beside launches of kernels.

mod collective;
mod custom;
mod operation;
mod progress_mark;
mod rows_of_ranks;
mod when;

pub(crate) use operation::CudaOperation;
