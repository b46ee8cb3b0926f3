//! Normalisation of queries and keys, head by head.

use super::columns::{add_partial, add_partial_at};
use super::shape::{LoadWidth, THREADS};
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::{AttentionSizes, HeadNorm, HeadNormBackward};
use crate::{DType, Result, Tensor};

/// `HeadNorm` of `kernels/head_norm.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct HeadNormArgs {
    input: u64,
    output: u64,
    query_weight: u64,
    key_weight: u64,
    table: u64,
    partial: u64,
    rows: u32,
    seq: u32,
    heads: u32,
    kv_heads: u32,
    half: u32,
    lanes: u32,
    eps: f32,
    weight_offset: f32,
}

/// How heads are distributed to threads.
struct HeadShape {
    load: LoadWidth,
    /// Threads of a head: a power of two.
    lanes: usize,
}

impl HeadShape {
    fn of(half: usize, dtype: DType, tensors: impl IntoIterator<Item = Tensor>) -> HeadShape {
        // With vectors a thread keeps one of each half.
        let load = match LoadWidth::of(half, tensors) {
            LoadWidth::Vector if half <= 32 * LoadWidth::Vector.values(dtype) => LoadWidth::Vector,
            _ => LoadWidth::Scalar,
        };
        HeadShape { load, lanes: (half / load.values(dtype)).next_power_of_two().min(32) }
    }

    /// Blocks for a loop over heads in any order, at most `at_once` on each multiprocessor.
    fn blocks(&self, heads: usize, at_once: usize, queue: &Queue<'_>) -> usize {
        heads.div_ceil(THREADS / self.lanes).min(queue.multiprocessors() * at_once)
    }
}

/// See [`HeadNorm`].
pub(super) fn head_norm(op: &HeadNorm, queue: &Queue<'_>) -> Result<()> {
    let (sizes, dtype) = (AttentionSizes::new(&op.input, op.heads, op.kv_heads), op.input.dtype);
    let tensors = [op.input, op.output, op.query_weight, op.key_weight];
    let shape = HeadShape::of(sizes.dim / 2, dtype, tensors.into_iter().chain(op.table));
    let block = HeadNormArgs::new(&sizes, &shape, tensors, op.table, (op.eps, op.weight_offset));
    let blocks = shape.blocks(op.input.shape.rows() * (op.heads + 2 * op.kv_heads), 8, queue);
    queue.launch_block(&shape.load.kernel("head_norm", dtype), Grid::line(blocks, THREADS as u32), &block)
}

/// Blocks of the backward on each multiprocessor, for queries and as many for keys. Each has a row of partial sums.
const BACKWARD_BLOCKS: usize = 4;

/// See [`HeadNormBackward`]: first the heads, with partial sums of the weights' gradients, then the sum of those, in order.
pub(super) fn head_norm_backward(op: &HeadNormBackward, queue: &Queue<'_>) -> Result<()> {
    let (sizes, dtype) = (AttentionSizes::new(&op.input, op.heads, op.kv_heads), op.input.dtype);
    let tensors = [op.input, op.grad, op.query_weight, op.key_weight];
    let shape = HeadShape::of(sizes.dim / 2, dtype, tensors.into_iter().chain(op.table));
    let partial = queue.scratch;
    let block =
        HeadNormArgs { partial, ..HeadNormArgs::new(&sizes, &shape, tensors, op.table, (op.eps, op.weight_offset)) };
    let blocks = shape.blocks(op.input.shape.rows() * op.heads, BACKWARD_BLOCKS, queue);
    let grid = Grid { blocks: (blocks as u32, 2, 1), threads: THREADS as u32, shared: 0 };
    queue.launch_block(&shape.load.kernel("head_norm_backward", dtype), grid, &block)?;
    let at = |kind: usize| queue.scratch + (kind * blocks * sizes.dim * DType::F32.size()) as u64;
    match [op.grad_query_weight, op.grad_key_weight] {
        // The sums of keys come after those of queries, whether these are wanted or not.
        [None, keys] => add_partial_at(at(1), blocks, keys, op.accumulate, queue),
        [queries, keys] => add_partial(blocks, [queries, keys].into_iter().flatten(), op.accumulate, queue),
    }
}

/// Scratch for the partial sums of [`head_norm_backward`]: as many rows as it may have, of queries and of keys.
pub(super) fn scratch_bytes(op: &HeadNormBackward, multiprocessors: usize) -> usize {
    2 * BACKWARD_BLOCKS * multiprocessors * op.query_weight.elements() * DType::F32.size()
}

impl HeadNormArgs {
    /// Without partial sums. `tensors` are input, output and the weights of queries and keys.
    fn new(
        sizes: &AttentionSizes,
        shape: &HeadShape,
        tensors: [Tensor; 4],
        table: Option<Tensor>,
        (eps, weight_offset): (f32, f32),
    ) -> HeadNormArgs {
        let [input, output, query_weight, key_weight] = tensors.map(|tensor| tensor.address);
        HeadNormArgs {
            input,
            output,
            query_weight,
            key_weight,
            table: table.map_or(0, |table| table.address),
            partial: 0,
            rows: (sizes.batch * sizes.seq) as u32,
            seq: sizes.seq as u32,
            heads: sizes.heads as u32,
            kv_heads: sizes.kv_heads as u32,
            half: (sizes.dim / 2) as u32,
            lanes: shape.lanes as u32,
            eps,
            weight_offset,
        }
    }
}
