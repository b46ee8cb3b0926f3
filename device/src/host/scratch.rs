//! What operations need beside their tensors while they run: none of it is planned, so it is told beforehand.

use super::Pool;
use super::gemm::TILE_ROWS;
use crate::ops::Epilogue;
use crate::{DType, Op, Tensor};

/// Bytes an operation takes from the system while it runs, but for small change: matrix products and attention compute in
/// f32, with a copy of factors that are not, and attention collects its heads before it stores them.
pub(crate) fn scratch_bytes(op: &Op, pool: &Pool) -> usize {
    let in_f32 = |tensor: &Tensor| tensor.shape.elements() * 4;
    let accesses = op.accesses();
    let halves = accesses.reads.iter().filter(|tensor| tensor.dtype == DType::Bf16);
    let copies: usize = halves.map(in_f32).sum();
    match op {
        Op::Gemm(op) => {
            let (m, n, _) = op.dimensions();
            let tiled = op.out.dtype != DType::F32 || matches!(op.epilogue, Epilogue::BiasGelu { .. });
            copies + if tiled { 4 * n * m.min(pool.threads() * TILE_ROWS) } else { 0 }
        }
        Op::Attention(_) | Op::AttentionBackward(_) => copies + accesses.writes.iter().map(in_f32).sum::<usize>(),
        _ => 0,
    }
}
