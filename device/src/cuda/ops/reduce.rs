//! Sums in f64.

use super::table::for_each_table;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{AddPartialSums, PartialSquareSums, SquareSum, SumInto};
use crate::{Result, Tensor};

/// `Summed` of `kernels/reduce.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Summed {
    values: u64,
    elements: u64,
    first_chunk: u32,
    reserved: u32,
}

/// `Sums` of `kernels/reduce.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Sums {
    partial: u64,
    count: u32,
    square: u32,
    entries: [Summed; 128],
}

/// See [`SumInto`].
pub(super) fn sum_into(op: &SumInto, queue: &Queue<'_>) -> Result<()> {
    let partials = partial_sums(&[op.input], false, queue.scratch, queue)?;
    add(queue.scratch, partials, &op.total, op.accumulate, queue)
}

/// See [`SquareSum`].
pub(super) fn square_sum(op: &SquareSum, queue: &Queue<'_>) -> Result<()> {
    let partials = partial_sums(&op.inputs, true, queue.scratch, queue)?;
    add(queue.scratch, partials, &op.total, false, queue)
}

/// See [`PartialSquareSums`].
pub(super) fn partial_square_sums(op: &PartialSquareSums, queue: &Queue<'_>) -> Result<()> {
    partial_sums(&op.inputs, true, op.partial.address, queue).map(|_| ())
}

/// See [`AddPartialSums`].
pub(super) fn add_partial_sums(op: &AddPartialSums, queue: &Queue<'_>) -> Result<()> {
    add(op.partial.address, op.partial.elements() / size_of::<f64>(), &op.total, false, queue)
}

/// Writes the sums of chunks, f64, to an address. Returns their number.
fn partial_sums(inputs: &[Tensor], square: bool, partial: u64, queue: &Queue<'_>) -> Result<usize> {
    let mut partials = 0;
    for_each_table(
        inputs.iter().map(|input| (input, input.elements())),
        |input, first_chunk| Summed {
            values: input.address,
            elements: input.elements() as u64,
            first_chunk,
            reserved: 0,
        },
        |entries, count, before, chunks| {
            partials = before + chunks;
            let partial = partial + (before * size_of::<f64>()) as u64;
            let block = Sums { partial, count, square: square.into(), entries: *entries };
            queue.launch_block("sum_chunks", Grid::line(chunks, 256), &block)
        },
    )?;
    Ok(partials)
}

/// Adds up such sums, in order.
fn add(partial: u64, partials: usize, total: &Tensor, accumulate: bool, queue: &Queue<'_>) -> Result<()> {
    queue.launch(
        "add_partial_sums",
        Grid::line(1, 1024),
        &[Arg::Pointer(partial), Arg::U64(partials as u64), (*total).into(), Arg::U32(accumulate.into())],
    )
}
