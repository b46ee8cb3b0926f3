//! Parts that the functions of several operations share.

mod bound;
mod counted;
mod dropout_mask;
mod gates;
mod math;
mod scatter;
mod scratch;
mod small_gemm;
mod updated;

pub(crate) use bound::{Bound, Capped, Unbounded, with_bound};
pub(crate) use counted::Counted;
pub(crate) use dropout_mask::DropoutMask;
pub(crate) use gates::{ClampedSilu, GateFunction, Gelu, Silu, with_gate};
pub(crate) use math::{exp, gelu, gelu_derivative, max, sigmoid, sum};
pub(crate) use scatter::scatter;
pub(crate) use scratch::{factors_in_f32, in_f32};
pub(crate) use small_gemm::{Matrix, TILE_ROWS, multiply};
pub(crate) use updated::{for_each_part, publish};
