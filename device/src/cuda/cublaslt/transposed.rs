//! TF32 products with a transposed copy of one factor.
//!
//! Hopper's tensor cores read TF32 factors along the sum only. A weight gradient sums over tokens, and tokens are the
//! rows of both its factors. cuBLASLt's kernels for that take half again as long. A transposed copy of one factor
//! brings most of the speed: on an H100 the product 2048 x 4096 x 640 takes 55 us, with the copy of either one 41 us,
//! and making it 4 us.

use super::problem::{EpilogueKind, GemmProblem};
use crate::cuda::{Arg, Grid, Queue, args};
use crate::ops::Gemm;
use crate::{Result, Tensor};

/// The sides of a tile of `kernels/products/transpose_f32.cu`.
const TILE: usize = 64;

/// Whether a product with a transposed copy is worth a trial.
pub(super) fn may_gain(problem: &GemmProblem) -> bool {
    let sizes = [problem.m, problem.n, problem.k];
    problem.tf32
        && (problem.transpose_a, problem.transpose_b) == (true, false)
        && problem.strides.is_none()
        && problem.epilogue == EpilogueKind::None
        && sizes.iter().all(|size| size.is_multiple_of(4))
        && problem.alignment[..2].iter().all(|alignment| *alignment >= 16)
}

/// Bytes of the copy.
pub(super) fn copy_bytes(op: &Gemm) -> usize {
    smaller_factor(op).bytes()
}

/// The same product with the copy at that address.
pub(super) fn with_copy(op: &Gemm, address: u64) -> Gemm {
    let source = smaller_factor(op);
    let copy = Tensor { address, shape: [source.shape.last(), source.shape.rows()].into(), ..source };
    match copies_a(op) {
        true => Gemm { a: copy, transpose_a: false, ..op.clone() },
        false => Gemm { b: copy, transpose_b: true, ..op.clone() },
    }
}

/// Makes the copy.
///
/// # Errors
/// The driver's.
pub(super) fn copy(op: &Gemm, address: u64, queue: &Queue<'_>) -> Result<()> {
    let source = smaller_factor(op);
    let (rows, columns) = (source.shape.rows(), source.shape.last());
    let arguments = args! { source, Arg::Pointer(address); U32: rows, columns };
    queue.launch("transpose_f32", Grid::line(rows.div_ceil(TILE) * columns.div_ceil(TILE), 256), arguments)
}

fn copies_a(op: &Gemm) -> bool {
    op.a.bytes() <= op.b.bytes()
}

fn smaller_factor(op: &Gemm) -> Tensor {
    if copies_a(op) { op.a } else { op.b }
}
