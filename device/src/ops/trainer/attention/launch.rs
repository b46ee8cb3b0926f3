//! Attention: through cuDNN if it has a plan, else by `kernels/attention/attention.cu`.

use crate::cuda::{CudaDevice, CudaOperation, Grid, KernelFile, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{Attention, AttentionBackward, AttentionSizes, Documents, DropoutSite, Mask, RankKeys, Scores};
use crate::{DType, Error, Result, Tensor};

kernel_struct! {
    /// `Arguments` of `kernels/headers/attention.cuh`.
    AttentionArguments {
        u64: qkv, keys, output, stats, grad_output, grad_qkv, grad_keys, delta, record, position_ids;
        i32: seq, key_seq;
        u32: part, first_shift, second_shift;
        i32: heads, kv_heads, dim;
        f32: scale;
        u32: key_low, key_high, threshold;
        f32: keep_scale;
        i32: vector;
        u32: first_head, window;
        f32: soft_cap;
        u32: first_query;
        i32: last_key;
        u32: reserved;
    }
}

/// The tensors of a backward alone; null in the forward.
#[derive(Default)]
struct BackwardPointers {
    grad_output: u64,
    grad_qkv: u64,
    grad_keys: u64,
    delta: u64,
}

/// The arguments of both directions' kernels.
fn arguments(
    sizes: &AttentionSizes,
    [qkv, output, stats]: [Tensor; 3],
    keys: Option<RankKeys>,
    backward: BackwardPointers,
    scores: Scores,
    (mask, documents, dropout): (Mask, Option<Documents>, Option<DropoutSite>),
) -> AttentionArguments {
    let BackwardPointers { grad_output, grad_qkv, grad_keys, delta } = backward;
    let keys = keys.map_or(0, |keys| keys.rows.address);
    let pointers = [qkv.address, keys, output.address, grad_output, grad_qkv, grad_keys];
    let aligned = pointers.iter().all(|address| address.is_multiple_of(16));
    let [part, first_shift, second_shift] = sizes.share.shifts(sizes.seq);
    let [key_low, key_high] = dropout.map_or([0; 2], |site| site.key());
    fill! {
        AttentionArguments: sizes.{seq, heads, kv_heads, dim}; qkv, keys, output, stats, grad_output, grad_qkv,
        grad_keys, delta, record: dropout.map(|site| site.record),
        position_ids: documents.map(|documents| documents.position_ids), key_seq: sizes.keys, part, first_shift,
        second_shift, scale: scores.scale(sizes.dim), key_low, key_high,
        threshold: dropout.map_or(0, |site| site.threshold()),
        keep_scale: dropout.map_or(1.0, |site| site.keep_scale()), vector: sizes.dim.is_multiple_of(4) && aligned,
        first_head: dropout.map_or(0, |site| site.part.first_head as u32), window: mask.window_or_all(),
        soft_cap: scores.soft_cap.unwrap_or(0.0), first_query: sizes.queries().start,
        last_key: sizes.of_rank.map_or(-1, |of_rank| of_rank.keys as i32 - 1), reserved: 0u32
    }
}

/// Launches `kernel` with one block per head and tile of `rows` rows. `tiles` are the rows of a tile for heads of up to 64,
/// 128 and 256 channels, as the kernels are compiled. `matrices` is the number of channel tiles that a block holds in
/// shared memory; it holds one tile of weights besides.
fn launch(
    sizes: &AttentionSizes,
    kernel: &str,
    (heads, rows): (usize, usize),
    (tiles, matrices): ([usize; 3], usize),
    arguments: &AttentionArguments,
    (dtype, queue): (DType, &Queue<'_>),
) -> Result<()> {
    let widths = [64, 128, 256];
    let Some(at) = widths.iter().position(|width| sizes.dim <= *width) else {
        let problem = format!("heads of {} channels; on CUDA at most {}", sizes.dim, Attention::WIDEST_ON_GPUS);
        return Err(Error::operation("attention", format!("{problem}. Fix: narrower heads, or --device host")));
    };
    let (tile, pitch) = (tiles[at], sizes.dim.next_multiple_of(4) + 4);
    let shared = 4 * (matrices * tile * pitch + tile * (tile + 4));
    let grid = Grid { shared, ..Grid::plane(sizes.batch * heads, rows.div_ceil(tile), 256) };
    queue.launch_block(&format!("{kernel}_{dtype}_{}", widths[at]), grid, arguments)
}

/// Rows of a tile and matrices of a block, as the forward's kernel and both kernels of the backward are compiled.
const FORWARD: ([usize; 3], usize) = ([64, 64, 32], 2);
const BACKWARD: ([usize; 3], usize) = ([64, 32, 16], 4);

/// The kernels, and those that cuDNN's plans are timed and fed with.
const FILES: &[KernelFile] =
    &[kernel_file!("attention/attention.cu"), kernel_file!("attention/documents.cu"), kernel_file!("random.cu")];

// To ask for scratch makes cuDNN's plan: nothing else is to prepare.
impl CudaOperation for Attention {
    fn files() -> &'static [KernelFile] {
        FILES
    }

    fn launch(&self, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        if let Some(cudnn) = &cuda.cudnn
            && let Some(plan) = cudnn.forward(self, queue.kernels)
        {
            return cudnn.run_forward(&plan, self, queue);
        }
        let sizes = AttentionSizes::new(&self.qkv, self.heads, self.kv_heads).with_keys(self.keys);
        if sizes.is_empty() {
            return Ok(());
        }
        let (tensors, seen) = ([self.qkv, self.output, self.stats], (self.mask, self.documents, self.dropout));
        let arguments = arguments(&sizes, tensors, self.keys, BackwardPointers::default(), self.scores, seen);
        launch(&sizes, "attention", (self.heads, sizes.queries().len()), FORWARD, &arguments, (self.qkv.dtype, queue))
    }

    fn scratch_bytes(&self, cuda: &CudaDevice) -> usize {
        let plan = cuda.cudnn.as_ref().and_then(|cudnn| cudnn.forward(self, &cuda.kernels));
        plan.map_or(0, |plan| plan.scratch_bytes())
    }
}

impl CudaOperation for AttentionBackward {
    fn files() -> &'static [KernelFile] {
        FILES
    }

    fn launch(&self, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        if let Some(cudnn) = &cuda.cudnn
            && let Some(plan) = cudnn.backward(self, queue.kernels)
        {
            return cudnn.run_backward(&plan, self, queue);
        }
        let keys = self.keys.map(|keys| keys.keys);
        let sizes = AttentionSizes::new(&self.qkv, self.heads, self.kv_heads).with_keys(keys);
        if sizes.is_empty() {
            return Ok(());
        }
        let backward = BackwardPointers {
            grad_output: self.grad_output.address,
            grad_qkv: self.grad_qkv.address,
            grad_keys: self.keys.map_or(0, |keys| keys.grad.address),
            delta: queue.scratch,
        };
        let (tensors, seen) = ([self.qkv, self.output, self.stats], (self.mask, self.documents, self.dropout));
        let arguments = arguments(&sizes, tensors, keys, backward, self.scores, seen);
        let to = (self.qkv.dtype, queue);
        launch(&sizes, "attention_backward_queries", (self.heads, sizes.queries().len()), BACKWARD, &arguments, to)?;
        launch(&sizes, "attention_backward_keys", (self.kv_heads, sizes.seen_keys()), BACKWARD, &arguments, to)
    }

    /// Our own kernels need one number per row of scores.
    fn scratch_bytes(&self, cuda: &CudaDevice) -> usize {
        let plan = cuda.cudnn.as_ref().and_then(|cudnn| cudnn.backward(self, &cuda.kernels));
        plan.map_or(self.stats.bytes(), |plan| plan.scratch_bytes())
    }
}
