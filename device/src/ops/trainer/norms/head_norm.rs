//! Normalisation of queries and keys, head by head.

mod host;

use crate::cuda::{
    GpuProperties, Grid, KernelFile, KernelOperation, LoadWidth, Queue, THREADS, fill, kernel_file, kernel_struct,
};
use crate::ops::{
    AttentionSizes, Operation, add_partial, add_partial_at, ensure, ensure_dtype, ensure_float, ensure_heads,
    ensure_shape, tensors,
};
use crate::{DType, Result, Tensor};

/// Channels of a head, at most: as many as the CUDA kernels keep in registers.
const MOST_CHANNELS: usize = 512;

/// RMSNorm of each query and key head of a packed QKV tensor (Henry et al., 2020; by head as in Qwen3), then the rotation of
/// [`Rotary`](crate::ops::Rotary). Nothing is rounded in between.
///
/// Each row holds `[query heads | key heads | value heads]`. Values are copied.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
    pub input: Tensor,
    /// As `input`, written.
    pub output: Tensor,
    /// `(head_dim)`: the weight that all query heads share.
    pub query_weight: Tensor,
    /// `(head_dim)`: the weight that all key heads share.
    pub key_weight: Tensor,
    /// Added to both weights, in f32; see [`NormKind::weight_offset`](crate::ops::NormKind::weight_offset).
    pub weight_offset: f32,
    /// `(seq, head_dim / 2, 2)`, f32: cosines and sines. `None`: nothing is rotated.
    pub table: Option<Tensor>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// Checks that both directions share. `other` is the packed tensor beside `input`.
fn check(
    op: &'static str,
    input: &Tensor,
    other: (&str, Tensor),
    weights: [Tensor; 2],
    table: Option<Tensor>,
    (heads, kv_heads): (usize, usize),
) -> Result<()> {
    ensure_heads(op, heads, kv_heads)?;
    let [query_weight, key_weight] = weights;
    let floats = [("input", *input), other, ("query_weight", query_weight), ("key_weight", key_weight)];
    ensure_float(op, &floats)?;
    let (sizes, groups) = (input.shape.sizes(), heads + 2 * kv_heads);
    ensure(op, sizes.len() == 3 && sizes[2].is_multiple_of(2 * groups) && sizes[2] / groups <= MOST_CHANNELS, || {
        format!(
            "`input` is {:?}, needs (batch, seq, {groups} * head_dim) with an even head_dim, at most {MOST_CHANNELS}",
            input.shape
        )
    })?;
    let head_dim = sizes[2] / groups;
    ensure_shape(op, other.0, &other.1, sizes)?;
    ensure_shape(op, "query_weight", &query_weight, &[head_dim])?;
    ensure_shape(op, "key_weight", &key_weight, &[head_dim])?;
    let Some(table) = table else { return Ok(()) };
    ensure_dtype(op, "table", &table, DType::F32)?;
    ensure_shape(op, "table", &table, &[sizes[1], head_dim / 2, 2])
}

impl Operation for HeadNorm {
    const NAME: &'static str = "head_norm";

    fn check(&self) -> Result<()> {
        let weights = [self.query_weight, self.key_weight];
        check(Self::NAME, &self.input, ("output", self.output), weights, self.table, (self.heads, self.kv_heads))
    }

    tensors! { read input; write output; read query_weight, key_weight, table }
}

/// Gradient of [`HeadNorm`], and the gradients of its weights: sums over all rows and heads, in f32, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNormBackward {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`, the forward's input.
    pub input: Tensor,
    /// As `input`, updated in place: from the gradient of the forward's output to that of its input.
    pub grad: Tensor,
    /// `(head_dim)`.
    pub query_weight: Tensor,
    /// `(head_dim)`.
    pub key_weight: Tensor,
    /// The forward's.
    pub weight_offset: f32,
    /// The forward's.
    pub table: Option<Tensor>,
    /// `(head_dim)`, f32; `None` if the weight is frozen.
    pub grad_query_weight: Option<Tensor>,
    /// `(head_dim)`, f32; `None` if the weight is frozen.
    pub grad_key_weight: Option<Tensor>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// The forward's.
    pub eps: f32,
    /// Add to the gradients of the weights instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for HeadNormBackward {
    const NAME: &'static str = "head_norm_backward";

    fn check(&self) -> Result<()> {
        let weights = [self.query_weight, self.key_weight];
        check(Self::NAME, &self.input, ("grad", self.grad), weights, self.table, (self.heads, self.kv_heads))?;
        for (name, tensor, weight) in [
            ("grad_query_weight", self.grad_query_weight, self.query_weight),
            ("grad_key_weight", self.grad_key_weight, self.key_weight),
        ] {
            let Some(tensor) = tensor else { continue };
            ensure_dtype(Self::NAME, name, &tensor, DType::F32)?;
            ensure_shape(Self::NAME, name, &tensor, weight.shape.sizes())?;
        }
        Ok(())
    }

    tensors! {
        read input; update grad; read query_weight, key_weight, table; add[accumulate] grad_query_weight, grad_key_weight
    }
}

kernel_struct! {
    /// `HeadNorm` of `kernels/norms/head_norm.cu`; 0 is the null pointer.
    HeadNormArgs {
        u64: input, output, query_weight, key_weight, table, partial;
        u32: rows, seq, heads, kv_heads, half, lanes;
        f32: eps, weight_offset;
    }
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

impl KernelOperation for HeadNorm {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/head_norm.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (sizes, dtype) = (AttentionSizes::new(&self.input, self.heads, self.kv_heads), self.input.dtype);
        let tensors = [self.input, self.output, self.query_weight, self.key_weight];
        let shape = HeadShape::of(sizes.dim / 2, dtype, tensors.into_iter().chain(self.table));
        let block = HeadNormArgs::new(&sizes, &shape, tensors, self.table, (self.eps, self.weight_offset));
        let blocks = shape.blocks(self.input.shape.rows() * (self.heads + 2 * self.kv_heads), 8, queue);
        queue.launch_block(&shape.load.kernel("head_norm", dtype), Grid::line(blocks, THREADS), &block)
    }
}

/// Blocks of the backward on each multiprocessor, for queries and as many for keys. Each has a row of partial sums.
const BACKWARD_BLOCKS: usize = 4;

impl KernelOperation for HeadNormBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/head_norm.cu"), kernel_file!("columns.cu")];

    /// First the heads, with partial sums of the weights' gradients, then the sum of those, in order.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (sizes, dtype) = (AttentionSizes::new(&self.input, self.heads, self.kv_heads), self.input.dtype);
        let tensors = [self.input, self.grad, self.query_weight, self.key_weight];
        let shape = HeadShape::of(sizes.dim / 2, dtype, tensors.into_iter().chain(self.table));
        let partial = queue.scratch;
        let block = HeadNormArgs {
            partial,
            ..HeadNormArgs::new(&sizes, &shape, tensors, self.table, (self.eps, self.weight_offset))
        };
        let blocks = shape.blocks(self.input.shape.rows() * self.heads, BACKWARD_BLOCKS, queue);
        let grid = Grid::plane(blocks, 2, THREADS);
        queue.launch_block(&shape.load.kernel("head_norm_backward", dtype), grid, &block)?;
        let at = |kind: usize| queue.scratch + (kind * blocks * sizes.dim * DType::F32.size()) as u64;
        match [self.grad_query_weight, self.grad_key_weight] {
            // The sums of keys come after those of queries, whether these are wanted or not.
            [None, keys] => add_partial_at(at(1), blocks, keys, self.accumulate, queue),
            [queries, keys] => add_partial(blocks, [queries, keys].into_iter().flatten(), self.accumulate, queue),
        }
    }

    fn scratch_bytes(&self, gpu: &GpuProperties) -> usize {
        2 * BACKWARD_BLOCKS * gpu.multiprocessors as usize * self.query_weight.elements() * DType::F32.size()
    }
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
        fill! {
            HeadNormArgs: sizes.{seq, heads, kv_heads}, shape.{lanes}; input, output, query_weight, key_weight, table,
            partial: 0u64, rows: sizes.batch * sizes.seq, half: sizes.dim / 2, eps, weight_offset
        }
    }
}
