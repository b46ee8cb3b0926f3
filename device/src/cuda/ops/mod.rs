//! Operations as launches of our own kernels; most files have a twin in `kernels/`.

mod capability;
mod collective;
mod columns;
mod custom;
mod elementwise;
mod kernel_operation;
mod operation;
mod progress_mark;
mod rows_of_ranks;
mod select;
mod shape;
mod table;
#[cfg(feature = "trainer-ops")]
mod trainer;
mod when;

pub(crate) use kernel_operation::KernelOperation;
pub(crate) use operation::CudaOperation;
#[cfg(feature = "trainer-ops")]
pub(crate) use trainer::norm_parts;
#[cfg(feature = "trainer-ops")]
pub(super) use trainer::products::gemm_epilogue;
