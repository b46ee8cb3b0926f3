//! Sums in f64.

mod host;

use std::sync::Arc;

use crate::cuda::{
    Arg, GpuProperties, Grid, KernelFile, KernelOperation, Queue, args, for_each_table, kernel_file, kernel_struct,
    table_chunks,
};
use crate::ops::{Operation, ensure_dtype, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// `total (+)= sum(input)`, accumulated in f64 in fixed chunks and rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct SumInto {
    /// Any shape, f32.
    pub input: Tensor,
    /// `(1)`, f32.
    pub total: Tensor,
    /// Add to `total` instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for SumInto {
    const NAME: &'static str = "sum_into";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "input", &self.input, DType::F32)?;
        ensure_values(Self::NAME, "total", &self.total, DType::F32, 1)
    }

    tensors! { read input; add[accumulate] total }
}

/// `total (+)= sum of x^2` over all tensors, accumulated in f64 in fixed chunks and rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct SquareSum {
    /// f32 or bf16, any shapes.
    pub inputs: Arc<[Tensor]>,
    /// `(1)`, f32.
    pub total: Tensor,
}

impl Operation for SquareSum {
    const NAME: &'static str = "square_sum";

    fn check(&self) -> Result<()> {
        for input in self.inputs.iter() {
            ensure_float(Self::NAME, &[("inputs", *input)])?;
        }
        ensure_values(Self::NAME, "total", &self.total, DType::F32, 1)
    }

    tensors! { read inputs; write total }
}

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
    let arguments = args! { Arg::Pointer(queue.scratch), Arg::U64(partials as u64), *total; U32: accumulate };
    queue.launch("add_partial_sums", Grid::line(1, 1024), arguments)
}

/// Bytes of scratch for the partial sums of `inputs`.
fn scratch_bytes(inputs: &[Tensor]) -> usize {
    inputs.iter().map(|input| table_chunks(input.elements())).sum::<usize>() * size_of::<f64>()
}
