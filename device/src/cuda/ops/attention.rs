//! Attention: through cuDNN if it has a plan, else by `kernels/attention.cu`.

use crate::cuda::Queue;
use crate::cuda::cudnn::Cudnn;
use crate::cuda::kernels::{Grid, Kernels};
use crate::ops::{Attention, AttentionBackward, AttentionSizes, Documents, DropoutSite, Mask, Scores};
use crate::{DType, Error, Result, Tensor};

/// The struct of the same name in `attention.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct AttentionArguments {
    qkv: u64,
    output: u64,
    stats: u64,
    grad_output: u64,
    grad_qkv: u64,
    delta: u64,
    record: u64,
    position_ids: u64,
    seq: i32,
    heads: i32,
    kv_heads: i32,
    dim: i32,
    scale: f32,
    key_low: u32,
    key_high: u32,
    threshold: u32,
    keep_scale: f32,
    vector: i32,
    first_head: u32,
    window: u32,
    soft_cap: f32,
    reserved: u32,
}

/// The arguments of both directions' kernels. In the forward the backward's pointers are null.
fn arguments(
    sizes: &AttentionSizes,
    tensors: [Tensor; 3],
    backward: Option<(Tensor, Tensor, u64)>,
    scores: Scores,
    (mask, documents, dropout): (Mask, Option<Documents>, Option<DropoutSite>),
) -> AttentionArguments {
    let [qkv, output, stats] = tensors;
    let (grad_output, grad_qkv, delta) = backward.map_or((0, 0, 0), |(a, b, c)| (a.address, b.address, c));
    let aligned = [qkv.address, output.address, grad_output, grad_qkv].iter().all(|a| a.is_multiple_of(16));
    let [key_low, key_high] = dropout.map_or([0; 2], |site| site.key());
    AttentionArguments {
        qkv: qkv.address,
        output: output.address,
        stats: stats.address,
        grad_output,
        grad_qkv,
        delta,
        record: dropout.map_or(0, |site| site.record.address),
        position_ids: documents.map_or(0, |documents| documents.position_ids.address),
        seq: sizes.seq as i32,
        heads: sizes.heads as i32,
        kv_heads: sizes.kv_heads as i32,
        dim: sizes.dim as i32,
        scale: scores.scale(sizes.dim),
        key_low,
        key_high,
        threshold: dropout.map_or(0, |site| site.threshold()),
        keep_scale: dropout.map_or(1.0, |site| site.keep_scale()),
        vector: i32::from(sizes.dim.is_multiple_of(4) && aligned),
        first_head: dropout.map_or(0, |site| site.part.first_head as u32),
        window: mask.window_or_all(),
        soft_cap: scores.soft_cap.unwrap_or(0.0),
        reserved: 0,
    }
}

/// Launches `kernel` with one block per head and tile of rows. `tiles` are the rows of a tile for heads of up to 64,
/// 128 and 256 channels, as the kernels are compiled. `matrices` is the number of channel tiles that a block holds in
/// shared memory; it holds one tile of weights besides.
fn launch(
    sizes: &AttentionSizes,
    kernel: &str,
    heads: usize,
    (tiles, matrices): ([usize; 3], usize),
    arguments: &AttentionArguments,
    (dtype, queue): (DType, &Queue<'_>),
) -> Result<()> {
    let widths = [64, 128, 256];
    let Some(at) = widths.iter().position(|width| sizes.dim <= *width) else {
        let problem = format!("heads of {} channels; on CUDA at most 256", sizes.dim);
        return Err(Error::operation("attention", format!("{problem}. Fix: narrower heads, or --device host")));
    };
    let (tile, pitch) = (tiles[at], sizes.dim.next_multiple_of(4) + 4);
    let shared = 4 * (matrices * tile * pitch + tile * (tile + 4));
    let blocks = ((sizes.batch * heads) as u32, sizes.seq.div_ceil(tile) as u32, 1);
    let grid = Grid { blocks, threads: 256, shared: shared as u32 };
    queue.launch_block(&format!("{kernel}_{dtype}_{}", widths[at]), grid, arguments)
}

/// Rows of a tile and matrices of a block, as the forward's kernel and both kernels of the backward are compiled.
const FORWARD: ([usize; 3], usize) = ([64, 64, 32], 2);
const BACKWARD: ([usize; 3], usize) = ([64, 32, 16], 4);

/// See [`Attention`].
pub(super) fn forward(op: &Attention, cudnn: Option<&Cudnn>, queue: &Queue<'_>) -> Result<()> {
    if let Some(cudnn) = cudnn
        && let Some(plan) = cudnn.forward(op, queue.kernels)
    {
        return cudnn.run_forward(&plan, op, queue);
    }
    let sizes = AttentionSizes::new(&op.qkv, op.heads, op.kv_heads);
    if sizes.is_empty() {
        return Ok(());
    }
    let seen = (op.mask, op.documents, op.dropout);
    let arguments = arguments(&sizes, [op.qkv, op.output, op.stats], None, op.scores, seen);
    launch(&sizes, "attention", op.heads, FORWARD, &arguments, (op.qkv.dtype, queue))
}

/// See [`AttentionBackward`].
pub(super) fn backward(op: &AttentionBackward, cudnn: Option<&Cudnn>, queue: &Queue<'_>) -> Result<()> {
    if let Some(cudnn) = cudnn
        && let Some(plan) = cudnn.backward(op, queue.kernels)
    {
        return cudnn.run_backward(&plan, op, queue);
    }
    let sizes = AttentionSizes::new(&op.qkv, op.heads, op.kv_heads);
    if sizes.is_empty() {
        return Ok(());
    }
    let backward = Some((op.grad_output, op.grad_qkv, queue.scratch));
    let seen = (op.mask, op.documents, op.dropout);
    let arguments = arguments(&sizes, [op.qkv, op.output, op.stats], backward, op.scores, seen);
    let to = (op.qkv.dtype, queue);
    launch(&sizes, "attention_backward_queries", op.heads, BACKWARD, &arguments, to)?;
    launch(&sizes, "attention_backward_keys", op.kv_heads, BACKWARD, &arguments, to)
}

/// Scratch of the forward, in bytes.
pub(super) fn forward_scratch(op: &Attention, cudnn: Option<&Cudnn>, kernels: &Kernels) -> usize {
    let plan = cudnn.and_then(|cudnn| cudnn.forward(op, kernels));
    plan.map_or(0, |plan| plan.scratch_bytes())
}

/// Scratch of the backward, in bytes. Our own kernels need one number per row of scores.
pub(super) fn backward_scratch(op: &AttentionBackward, cudnn: Option<&Cudnn>, kernels: &Kernels) -> usize {
    let plan = cudnn.and_then(|cudnn| cudnn.backward(op, kernels));
    plan.map_or(op.stats.bytes(), |plan| plan.scratch_bytes())
}
