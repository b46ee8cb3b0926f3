//! Normalisation of queries and keys over all heads at once.

use crate::cuda::kernels::{Grid, KernelFile, kernel_file};
use crate::cuda::ops::columns::add_partial_at;
use crate::cuda::ops::shape::{LoadWidth, THREADS};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::{AttentionSizes, HeadSums, JointNorm, JointNormBackward};
use crate::{DType, Result, Tensor};

/// `JointNorm` of `kernels/norms/joint_norm.cu`; 0 is the null pointer.
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
        let grid = Grid { blocks: (block.rows, 2, 1), threads: THREADS as u32, shared: 0 };
        queue.launch_block(&block.load(tensors).kernel("head_sums", self.input.dtype), grid, &block)
    }
}

impl KernelOperation for JointNorm {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/joint_norm.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = JointNormArgs {
            output: self.output.address,
            query_weight: self.query_weight.address,
            key_weight: self.key_weight.address,
            squares: self.squares.address,
            ranks: self.ranks as u32,
            eps: self.eps,
            ..JointNormArgs::new(&self.input, self.heads, self.kv_heads)
        };
        let load = block.load([self.input, self.output, self.query_weight, self.key_weight]);
        let blocks = (block.rows as usize).min(queue.multiprocessors() * 8);
        queue.launch_block(&load.kernel("joint_norm", self.input.dtype), Grid::line(blocks, THREADS as u32), &block)
    }
}

/// Blocks of the backward on each multiprocessor. Each has a row of partial sums.
const BACKWARD_BLOCKS: usize = 4;

impl KernelOperation for JointNormBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/joint_norm.cu"), kernel_file!("columns.cu")];

    /// First the rows, with partial sums of the weights' gradients, then the sum of those, in order.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = JointNormArgs {
            output: self.grad.address,
            query_weight: self.query_weight.address,
            key_weight: self.key_weight.address,
            squares: self.squares.address,
            products: self.products.address,
            partial: queue.scratch,
            ranks: self.ranks as u32,
            eps: self.eps,
            ..JointNormArgs::new(&self.input, self.heads, self.kv_heads)
        };
        let load = block.load([self.input, self.grad, self.query_weight, self.key_weight]);
        let blocks = (block.rows as usize).min(queue.multiprocessors() * BACKWARD_BLOCKS);
        let grid = Grid::line(blocks, THREADS as u32);
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
