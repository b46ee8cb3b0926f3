//! Matrix products, and what runs between them: activations and dropout.

mod activation;
mod dropout;
mod dropout_mask;
mod gates;
pub(crate) mod gemm;
mod small_gemm;

pub(crate) use dropout_mask::DropoutMask;
pub(crate) use gates::{ClampedSilu, GateFunction, Gelu, Silu, with_gate};
pub(crate) use small_gemm::{Matrix, multiply};
