//! Sums in f64.

use crate::cuda::kernels::{Arg, Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::table::{chunks, for_each_table};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::{SquareSum, SumInto};
use crate::{DType, Result, Tensor};

kernel_struct! {
    /// `Summed` of `kernels/updates/reduce.cu`.
    Summed {
        u64: values, elements;
        u32: first_chunk, is_bf16;
    }
}

kernel_struct! {
    /// `Sums` of `kernels/updates/reduce.cu`.
    Sums {
        u64: partial;
        u32: count, square;
        [Summed; 128]: entries;
    }
}

impl KernelOperation for SumInto {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/reduce.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        sum(&[self.input], false, &self.total, self.accumulate, queue)
    }

    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        scratch_bytes(&[self.input])
    }
}

impl KernelOperation for SquareSum {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/reduce.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        sum(&self.inputs, true, &self.total, false, queue)
    }

    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        scratch_bytes(&self.inputs)
    }
}

/// First the sums of chunks, in scratch, then their sum, in order.
fn sum(inputs: &[Tensor], square: bool, total: &Tensor, accumulate: bool, queue: &Queue<'_>) -> Result<()> {
    let mut partials = 0;
    for_each_table(
        inputs.iter().map(|input| (input, input.elements())),
        |input, first_chunk| Summed {
            values: input.address,
            elements: input.elements() as u64,
            first_chunk,
            is_bf16: (input.dtype == DType::Bf16).into(),
        },
        |entries, count, before, chunks| {
            partials = before + chunks;
            let partial = queue.scratch + (before * size_of::<f64>()) as u64;
            let block = Sums { partial, count, square: square.into(), entries: *entries };
            queue.launch_block("sum_chunks", Grid::line(chunks, 256), &block)
        },
    )?;
    queue.launch(
        "add_partial_sums",
        Grid::line(1, 1024),
        &[Arg::Pointer(queue.scratch), Arg::U64(partials as u64), (*total).into(), Arg::U32(accumulate.into())],
    )
}

/// Scratch for the partial sums of these tensors.
fn scratch_bytes(inputs: &[Tensor]) -> usize {
    inputs.iter().map(|input| chunks(input.elements())).sum::<usize>() * size_of::<f64>()
}
