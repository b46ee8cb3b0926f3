//! Matrix products, and what runs between them: activations and dropout.

mod activation;
mod dropout;
mod gemm;
pub(in crate::cuda) mod gemm_epilogue;

pub(crate) use activation::{glu_backward_name, glu_name};
