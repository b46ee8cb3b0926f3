//! Normalisation of queries and keys over all heads at once. Several ranks may share these heads.

mod host;

use crate::cuda::{
    GpuProperties, Grid, KernelFile, KernelOperation, LoadWidth, Queue, THREADS, fill, kernel_file, kernel_struct,
};
use crate::ops::{
    AttentionSizes, HasTensors, Operation, add_partial_at, ensure, ensure_dtype, ensure_float, ensure_heads,
    ensure_shape, tensors,
};
use crate::{DType, Result, Tensor};

/// For each row the sum over all channels of the query heads, and that of the key heads: of the squares, or with a `gradient`
/// of the products of value, weight and gradient. Ranks that share the heads then add up these sums.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSums {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`: rows of `[query heads | key heads | value heads]`.
    pub input: Tensor,
    /// Instead of squares.
    pub gradient: Option<WeightedGradient>,
    /// `(batch * seq, 2)`, f32, written: of queries, of keys.
    pub sums: Tensor,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
}

/// The gradient of the output of [`JointNorm`], and its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedGradient {
    /// As the norm's input.
    pub grad: Tensor,
    /// `(heads * head_dim)`.
    pub query_weight: Tensor,
    /// `(kv_heads * head_dim)`.
    pub key_weight: Tensor,
}

impl HasTensors for WeightedGradient {
    tensors! { grad, query_weight, key_weight }
}

/// RMSNorm of all query channels of a row together, and of all key channels (OLMo 2; Team OLMo, 2024), from the sums of their
/// squares over all ranks. Values are copied.
#[derive(Clone, Debug, PartialEq)]
pub struct JointNorm {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`: rows of `[query heads | key heads | value heads]`.
    pub input: Tensor,
    /// As `input`, written.
    pub output: Tensor,
    /// `(heads * head_dim)`.
    pub query_weight: Tensor,
    /// `(kv_heads * head_dim)`.
    pub key_weight: Tensor,
    /// `(batch * seq, 2)`, f32: the sums of squares over the heads of all ranks, from [`HeadSums`].
    pub squares: Tensor,
    /// Query heads here.
    pub heads: usize,
    /// Key and value heads here.
    pub kv_heads: usize,
    /// Ranks that have as many heads, copies counted as often as they are in the sums.
    pub ranks: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// Checks a packed tensor, another of its shape, the weights and sums; returns the widths of queries and keys.
fn check_packed(
    op: &'static str,
    [input, other]: [&Tensor; 2],
    weights: Option<[Tensor; 2]>,
    sums: &[Tensor],
    (heads, kv_heads): (usize, usize),
) -> Result<[usize; 2]> {
    ensure_heads(op, heads, kv_heads)?;
    let (sizes, groups) = (input.shape.sizes(), heads + 2 * kv_heads);
    ensure(op, sizes.len() == 3 && sizes[2].is_multiple_of(groups), || {
        format!("`input` is {:?}, needs (batch, seq, {groups} * head_dim)", input.shape)
    })?;
    ensure_float(op, &[("input", *input), ("the other packed tensor", *other)])?;
    ensure_shape(op, "the other packed tensor", other, sizes)?;
    let head_dim = sizes[2] / groups;
    let widths = [heads * head_dim, kv_heads * head_dim];
    for ((name, weight), width) in
        ["query_weight", "key_weight"].into_iter().zip(weights.into_iter().flatten()).zip(widths)
    {
        ensure_float(op, &[("input", *input), (name, weight)])?;
        ensure_shape(op, name, &weight, &[width])?;
    }
    for sums in sums {
        ensure_dtype(op, "sums", sums, DType::F32)?;
        ensure_shape(op, "sums", sums, &[sizes[0] * sizes[1], 2])?;
    }
    Ok(widths)
}

impl Operation for HeadSums {
    const NAME: &'static str = "head_sums";

    fn check(&self) -> Result<()> {
        let other = self.gradient.map_or(self.input, |gradient| gradient.grad);
        let weights = self.gradient.map(|gradient| [gradient.query_weight, gradient.key_weight]);
        let heads = (self.heads, self.kv_heads);
        check_packed(Self::NAME, [&self.input, &other], weights, &[self.sums], heads).map(|_| ())
    }

    tensors! { read input, gradient; write sums }
}

impl Operation for JointNorm {
    const NAME: &'static str = "joint_norm";

    fn check(&self) -> Result<()> {
        let weights = Some([self.query_weight, self.key_weight]);
        let heads = (self.heads, self.kv_heads);
        check_packed(Self::NAME, [&self.input, &self.output], weights, &[self.squares], heads).map(|_| ())
    }

    tensors! { read input; write output; read query_weight, key_weight, squares }
}

/// Gradient of [`JointNorm`], and the gradients of its weights: sums over all rows, in f32, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct JointNormBackward {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`, the forward's input.
    pub input: Tensor,
    /// As `input`, updated in place: from the gradient of the forward's output to that of its input.
    pub grad: Tensor,
    /// `(heads * head_dim)`.
    pub query_weight: Tensor,
    /// `(kv_heads * head_dim)`.
    pub key_weight: Tensor,
    /// The forward's.
    pub squares: Tensor,
    /// `(batch * seq, 2)`, f32: sums of value times weight times gradient over the heads of all ranks, from [`HeadSums`].
    pub products: Tensor,
    /// `(heads * head_dim)`, f32; `None` if the weight is frozen.
    pub grad_query_weight: Option<Tensor>,
    /// `(kv_heads * head_dim)`, f32; `None` if the weight is frozen.
    pub grad_key_weight: Option<Tensor>,
    /// Query heads here.
    pub heads: usize,
    /// Key and value heads here.
    pub kv_heads: usize,
    /// The forward's.
    pub ranks: usize,
    /// The forward's.
    pub eps: f32,
    /// Add to the gradients of the weights instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for JointNormBackward {
    const NAME: &'static str = "joint_norm_backward";

    fn check(&self) -> Result<()> {
        let weights = Some([self.query_weight, self.key_weight]);
        let (sums, heads) = ([self.squares, self.products], (self.heads, self.kv_heads));
        let widths = check_packed(Self::NAME, [&self.input, &self.grad], weights, &sums, heads)?;
        let grads = [("grad_query_weight", self.grad_query_weight), ("grad_key_weight", self.grad_key_weight)];
        for ((name, grad), width) in grads.into_iter().zip(widths) {
            let Some(grad) = grad else { continue };
            ensure_dtype(Self::NAME, name, &grad, DType::F32)?;
            ensure_shape(Self::NAME, name, &grad, &[width])?;
        }
        Ok(())
    }

    tensors! {
        read input; update grad; read query_weight, key_weight, squares, products; add[accumulate] grad_query_weight, grad_key_weight
    }
}

kernel_struct! {
    /// `JointNorm` of `kernels/norms/joint_norm.cu`; 0 is the null pointer.
    JointNormArgs {
        u64: input, output, query_weight, key_weight, squares, products, partial, sums;
        u32: rows, queries, keys, ranks;
        f32: eps;
        u32: reserved;
    }
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
            ..bytemuck::Zeroable::zeroed()
        }
    }

    /// How to load: vectors must not cross from queries to keys or from keys to values.
    fn load(&self, tensors: impl IntoIterator<Item = Tensor> + Clone) -> LoadWidth {
        let whole = |columns: u32| LoadWidth::of(columns as usize, tensors.clone()) == LoadWidth::Vector;
        if whole(self.queries) && whole(self.keys) { LoadWidth::Vector } else { LoadWidth::Scalar }
    }
}

impl KernelOperation for HeadSums {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/joint_norm.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let mut block =
            JointNormArgs { sums: self.sums.address, ..JointNormArgs::new(&self.input, self.heads, self.kv_heads) };
        let mut tensors = vec![self.input];
        if let Some(of) = self.gradient {
            tensors.extend([of.grad, of.query_weight, of.key_weight]);
            (block.output, block.query_weight, block.key_weight) =
                (of.grad.address, of.query_weight.address, of.key_weight.address);
        }
        let grid = Grid::plane(block.rows as usize, 2, THREADS);
        queue.launch_block(&block.load(tensors).kernel("head_sums", self.input.dtype), grid, &block)
    }
}

impl KernelOperation for JointNorm {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/joint_norm.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = fill! {
            JointNormArgs: self.{output, query_weight, key_weight, squares, ranks, eps};
            ..JointNormArgs::new(&self.input, self.heads, self.kv_heads)
        };
        let load = block.load([self.input, self.output, self.query_weight, self.key_weight]);
        let blocks = (block.rows as usize).min(queue.multiprocessors() * 8);
        queue.launch_block(&load.kernel("joint_norm", self.input.dtype), Grid::line(blocks, THREADS), &block)
    }
}

/// Blocks of the backward on each multiprocessor. Each has a row of partial sums.
const BACKWARD_BLOCKS: usize = 4;

impl KernelOperation for JointNormBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/joint_norm.cu"), kernel_file!("columns.cu")];

    /// First the rows, with partial sums of the weights' gradients, then the sum of those, in order.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = fill! {
            JointNormArgs: self.{query_weight, key_weight, squares, products, ranks, eps}; output: self.grad,
            partial: queue.scratch; ..JointNormArgs::new(&self.input, self.heads, self.kv_heads)
        };
        let load = block.load([self.input, self.grad, self.query_weight, self.key_weight]);
        let blocks = (block.rows as usize).min(queue.multiprocessors() * BACKWARD_BLOCKS);
        let grid = Grid::line(blocks, THREADS);
        queue.launch_block(&load.kernel("joint_norm_backward", self.input.dtype), grid, &block)?;
        let keys = queue.scratch + (blocks * block.queries as usize * DType::F32.size()) as u64;
        add_partial_at(queue.scratch, blocks, self.grad_query_weight, self.accumulate, queue)?;
        add_partial_at(keys, blocks, self.grad_key_weight, self.accumulate, queue)
    }

    fn scratch_bytes(&self, gpu: &GpuProperties) -> usize {
        let columns = self.query_weight.elements() + self.key_weight.elements();
        BACKWARD_BLOCKS * gpu.multiprocessors as usize * columns * DType::F32.size()
    }
}
