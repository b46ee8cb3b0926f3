//! Normalisation of queries and keys over all heads at once.

use super::columns::add_partial_at;
use super::shape::{LoadWidth, THREADS};
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::{AttentionSizes, HeadSums, JointNorm, JointNormBackward};
use crate::{DType, Result, Tensor};

/// `JointNorm` of `kernels/joint_norm.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct JointNormArgs {
    input: u64,
    output: u64,
    query_weight: u64,
    key_weight: u64,
    squares: u64,
    products: u64,
    partial: u64,
    sums: u64,
    rows: u32,
    queries: u32,
    keys: u32,
    ranks: u32,
    eps: f32,
    reserved: u32,
}

impl JointNormArgs {
    /// The sizes of a packed tensor, and its address.
    fn new(input: &Tensor, heads: usize, kv_heads: usize) -> JointNormArgs {
        let sizes = AttentionSizes::new(input, heads, kv_heads);
        JointNormArgs {
            input: input.address,
            rows: (sizes.batch * sizes.seq) as u32,
            queries: (sizes.heads * sizes.dim) as u32,
            keys: (sizes.kv_heads * sizes.dim) as u32,
            ranks: 1,
            ..JointNormArgs::default()
        }
    }

    /// How to load: vectors must not cross from queries to keys or from keys to values.
    fn load(&self, tensors: impl IntoIterator<Item = Tensor> + Clone) -> LoadWidth {
        let whole = |columns: u32| LoadWidth::of(columns as usize, tensors.clone()) == LoadWidth::Vector;
        if whole(self.queries) && whole(self.keys) { LoadWidth::Vector } else { LoadWidth::Scalar }
    }
}

/// See [`HeadSums`].
pub(super) fn head_sums(op: &HeadSums, queue: &Queue<'_>) -> Result<()> {
    let mut block = JointNormArgs { sums: op.sums.address, ..JointNormArgs::new(&op.input, op.heads, op.kv_heads) };
    let mut tensors = vec![op.input];
    if let Some(of) = op.gradient {
        tensors.extend([of.grad, of.query_weight, of.key_weight]);
        (block.output, block.query_weight, block.key_weight) =
            (of.grad.address, of.query_weight.address, of.key_weight.address);
    }
    let grid = Grid { blocks: (block.rows, 2, 1), threads: THREADS as u32, shared: 0 };
    queue.launch_block(&block.load(tensors).kernel("head_sums", op.input.dtype), grid, &block)
}

/// See [`JointNorm`].
pub(super) fn joint_norm(op: &JointNorm, queue: &Queue<'_>) -> Result<()> {
    let block = JointNormArgs {
        output: op.output.address,
        query_weight: op.query_weight.address,
        key_weight: op.key_weight.address,
        squares: op.squares.address,
        ranks: op.ranks as u32,
        eps: op.eps,
        ..JointNormArgs::new(&op.input, op.heads, op.kv_heads)
    };
    let load = block.load([op.input, op.output, op.query_weight, op.key_weight]);
    let blocks = (block.rows as usize).min(queue.multiprocessors() * 8);
    queue.launch_block(&load.kernel("joint_norm", op.input.dtype), Grid::line(blocks, THREADS as u32), &block)
}

/// Blocks of the backward on each multiprocessor. Each has a row of partial sums.
const BACKWARD_BLOCKS: usize = 4;

/// See [`JointNormBackward`]: first the rows, with partial sums of the weights' gradients, then the sum of those, in order.
pub(super) fn joint_norm_backward(op: &JointNormBackward, queue: &Queue<'_>) -> Result<()> {
    let block = JointNormArgs {
        output: op.grad.address,
        query_weight: op.query_weight.address,
        key_weight: op.key_weight.address,
        squares: op.squares.address,
        products: op.products.address,
        partial: queue.scratch,
        ranks: op.ranks as u32,
        eps: op.eps,
        ..JointNormArgs::new(&op.input, op.heads, op.kv_heads)
    };
    let load = block.load([op.input, op.grad, op.query_weight, op.key_weight]);
    let blocks = (block.rows as usize).min(queue.multiprocessors() * BACKWARD_BLOCKS);
    let grid = Grid::line(blocks, THREADS as u32);
    queue.launch_block(&load.kernel("joint_norm_backward", op.input.dtype), grid, &block)?;
    let keys = queue.scratch + (blocks * block.queries as usize * DType::F32.size()) as u64;
    add_partial_at(queue.scratch, blocks, op.grad_query_weight, op.accumulate, queue)?;
    add_partial_at(keys, blocks, op.grad_key_weight, op.accumulate, queue)
}

/// Scratch for the partial sums of [`joint_norm_backward`]: as many rows as it may have.
pub(super) fn scratch_bytes(op: &JointNormBackward, multiprocessors: usize) -> usize {
    let columns = op.query_weight.elements() + op.key_weight.elements();
    BACKWARD_BLOCKS * multiprocessors * columns * DType::F32.size()
}
