//! Causal attention: cuDNN where it can, else `kernels/attention.cu`.

use crate::cuda::Queue;
use crate::cuda::cudnn::Cudnn;
use crate::cuda::kernels::{Grid, Kernels};
use crate::ops::{Attention, AttentionBackward, DropoutSite};
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
    reserved: u32,
}

/// The sizes of a packed attention.
struct Sizes {
    batch: usize,
    seq: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

impl Sizes {
    fn new(qkv: &Tensor, heads: usize, kv_heads: usize) -> Sizes {
        let sizes = qkv.shape.sizes();
        Sizes { batch: sizes[0], seq: sizes[1], heads, kv_heads, dim: sizes[2] / (heads + 2 * kv_heads) }
    }

    fn is_empty(&self) -> bool {
        self.batch * self.seq * self.dim == 0
    }

    /// What both directions pass to their kernels; the backward's pointers are null.
    fn arguments(
        &self,
        tensors: [Tensor; 3],
        backward: Option<(Tensor, Tensor, u64)>,
        dropout: Option<DropoutSite>,
    ) -> AttentionArguments {
        let [qkv, output, stats] = tensors;
        let (grad_output, grad_qkv, delta) = backward.map_or((0, 0, 0), |(a, b, c)| (a.address, b.address, c));
        let aligned = [qkv.address, output.address, grad_output, grad_qkv].iter().all(|a| a.is_multiple_of(16));
        let place = dropout.map_or(0, |site| u32::from(site.layer) << 16 | u32::from(site.site));
        AttentionArguments {
            qkv: qkv.address,
            output: output.address,
            stats: stats.address,
            grad_output,
            grad_qkv,
            delta,
            record: dropout.map_or(0, |site| site.record.address),
            seq: self.seq as i32,
            heads: self.heads as i32,
            kv_heads: self.kv_heads as i32,
            dim: self.dim as i32,
            scale: 1.0 / (self.dim as f32).sqrt(),
            key_low: dropout.map_or(0, |site| site.seed as u32),
            key_high: dropout.map_or(0, |site| (site.seed >> 32) as u32 ^ place),
            threshold: dropout.map_or(0, |site| (f64::from(site.rate) * 4294967296.0) as u32),
            keep_scale: dropout.map_or(1.0, |site| 1.0 / (1.0 - site.rate)),
            vector: i32::from(self.dim.is_multiple_of(4) && aligned),
            first_head: dropout.map_or(0, |site| site.part.first_head as u32),
            reserved: 0,
        }
    }

    /// Launches `kernel` with a block for each of `heads` and each tile of rows. `tiles` gives the rows of a tile for
    /// heads of up to 64, 128 and 256 channels, as the kernels are compiled; `matrices` are the tiles of channels that a
    /// block holds, to which comes one of weights.
    fn launch(
        &self,
        kernel: &str,
        heads: usize,
        (tiles, matrices): ([usize; 3], usize),
        arguments: &AttentionArguments,
        (dtype, queue): (DType, &Queue<'_>),
    ) -> Result<()> {
        let widths = [64, 128, 256];
        let Some(at) = widths.iter().position(|width| self.dim <= *width) else {
            let problem = format!("heads of {} channels; on CUDA at most 256", self.dim);
            return Err(Error::operation("attention", format!("{problem}. Fix: more heads, or --device host")));
        };
        let (tile, pitch) = (tiles[at], self.dim.next_multiple_of(4) + 4);
        let shared = 4 * (matrices * tile * pitch + tile * (tile + 4));
        let blocks = ((self.batch * heads) as u32, self.seq.div_ceil(tile) as u32, 1);
        let grid = Grid { blocks, threads: 256, shared: shared as u32 };
        queue.launch_block(&format!("{kernel}_{dtype}_{}", widths[at]), grid, arguments)
    }
}

/// Rows of a tile and matrices of a block, as `forward` and both kernels of the backward are compiled.
const FORWARD: ([usize; 3], usize) = ([64, 64, 32], 2);
const BACKWARD: ([usize; 3], usize) = ([64, 32, 16], 4);

/// See [`Attention`].
pub(super) fn forward(op: &Attention, cudnn: Option<&Cudnn>, queue: &Queue<'_>) -> Result<()> {
    if let Some(cudnn) = cudnn
        && let Some(plan) = cudnn.forward(op, queue.kernels)
    {
        return cudnn.run_forward(&plan, op, queue.stream, queue.scratch);
    }
    let sizes = Sizes::new(&op.qkv, op.heads, op.kv_heads);
    if sizes.is_empty() {
        return Ok(());
    }
    let arguments = sizes.arguments([op.qkv, op.output, op.stats], None, op.dropout);
    sizes.launch("attention", op.heads, FORWARD, &arguments, (op.qkv.dtype, queue))
}

/// See [`AttentionBackward`].
pub(super) fn backward(op: &AttentionBackward, cudnn: Option<&Cudnn>, queue: &Queue<'_>) -> Result<()> {
    if let Some(cudnn) = cudnn
        && let Some(plan) = cudnn.backward(op, queue.kernels)
    {
        return cudnn.run_backward(&plan, op, queue.stream, queue.scratch);
    }
    let sizes = Sizes::new(&op.qkv, op.heads, op.kv_heads);
    if sizes.is_empty() {
        return Ok(());
    }
    let backward = Some((op.grad_output, op.grad_qkv, queue.scratch));
    let arguments = sizes.arguments([op.qkv, op.output, op.stats], backward, op.dropout);
    let to = (op.qkv.dtype, queue);
    sizes.launch("attention_backward_queries", op.heads, BACKWARD, &arguments, to)?;
    sizes.launch("attention_backward_keys", op.kv_heads, BACKWARD, &arguments, to)
}

/// Scratch of the forward, in bytes.
pub(super) fn forward_scratch(op: &Attention, cudnn: Option<&Cudnn>, kernels: &Kernels) -> usize {
    let plan = cudnn.and_then(|cudnn| cudnn.forward(op, kernels));
    plan.map_or(0, |plan| plan.scratch_bytes())
}

/// Scratch of the backward, in bytes: our own kernels keep a number for each row of scores.
pub(super) fn backward_scratch(op: &AttentionBackward, cudnn: Option<&Cudnn>, kernels: &Kernels) -> usize {
    let plan = cudnn.and_then(|cudnn| cudnn.backward(op, kernels));
    plan.map_or(op.stats.bytes(), |plan| plan.scratch_bytes())
}
