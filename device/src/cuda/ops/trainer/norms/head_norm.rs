//! Normalisation of queries and keys, head by head.

use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::columns::{add_partial, add_partial_at};
use crate::cuda::ops::shape::{LoadWidth, THREADS};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::{AttentionSizes, HeadNorm, HeadNormBackward};
use crate::{DType, Result, Tensor};

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
        queue.launch_block(&shape.load.kernel("head_norm", dtype), Grid::line(blocks, THREADS as u32), &block)
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
        let grid = Grid { blocks: (blocks as u32, 2, 1), threads: THREADS as u32, shared: 0 };
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
