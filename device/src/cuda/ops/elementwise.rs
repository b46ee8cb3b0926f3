//! Copies, sums and constants.

use super::shape::{LoadWidth, over_packs};
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::{Add, ColumnRange, Copy, CopyColumns, Fill, Multiply, Poison, SoftCap};
use crate::{DType, Result, Tensor};

/// See [`Fill`]. The driver sets zeros.
pub(super) fn fill(op: &Fill, queue: &Queue<'_>) -> Result<()> {
    if op.value.to_bits() == 0 {
        return set_bytes(&op.output, 0, queue);
    }
    let (count, dtype) = (op.output.elements(), op.output.dtype);
    let load = LoadWidth::of(count, [op.output]);
    let grid = over_packs(count / load.values(dtype), queue);
    queue.launch(&load.kernel("fill", dtype), grid, &[op.output.into(), Arg::F32(op.value), Arg::U64(count as u64)])
}

/// See [`Poison`].
pub(super) fn poison(op: &Poison, queue: &Queue<'_>) -> Result<()> {
    set_bytes(&op.output, 0xff, queue)
}

fn set_bytes(output: &Tensor, value: u8, queue: &Queue<'_>) -> Result<()> {
    if output.bytes() == 0 {
        return Ok(());
    }
    queue.stream.set_bytes(output.address, value, output.bytes())
}

/// See [`SoftCap`].
pub(super) fn soft_cap(op: &SoftCap, queue: &Queue<'_>) -> Result<()> {
    let (count, dtype) = (op.values.elements(), op.values.dtype);
    let load = LoadWidth::of(count, [op.values]);
    let grid = over_packs(count / load.values(dtype), queue);
    queue.launch(&load.kernel("soft_cap", dtype), grid, &[op.values.into(), Arg::F32(op.cap), Arg::U64(count as u64)])
}

/// See [`Add`].
pub(super) fn add(op: &Add, queue: &Queue<'_>) -> Result<()> {
    let (count, dtype) = (op.output.elements(), op.output.dtype);
    let load = LoadWidth::of(count, [op.a, op.b, op.output]);
    let grid = over_packs(count / load.values(dtype), queue);
    queue.launch(
        &load.kernel("add", dtype),
        grid,
        &[op.a.into(), op.b.into(), op.output.into(), Arg::U64(count as u64)],
    )
}

/// See [`Multiply`].
pub(super) fn multiply(op: &Multiply, queue: &Queue<'_>) -> Result<()> {
    let (count, dtype) = (op.output.elements(), op.output.dtype);
    let load = LoadWidth::of(count, [op.input, op.output]);
    let grid = over_packs(count / load.values(dtype), queue);
    let arguments = [op.input.into(), op.factor.into(), op.output.into(), Arg::U64(count as u64)];
    queue.launch(&load.kernel("multiply", dtype), grid, &arguments)
}

/// See [`Copy`].
pub(super) fn copy(op: &Copy, queue: &Queue<'_>) -> Result<()> {
    let (from, to) = (op.input, op.output);
    let count = from.elements();
    if from.dtype == to.dtype {
        if count == 0 || from.address == to.address {
            return Ok(());
        }
        return queue.stream.copy(to.address, from.address, from.bytes());
    }
    // Four values at a time: 16 bytes of f32, 8 of bf16.
    let load = LoadWidth::of(count, [from, to]);
    let packs = if load == LoadWidth::Vector { count / 4 } else { count };
    let name = if from.dtype == DType::F32 { "convert_f32" } else { "convert_bf16" };
    queue.launch(
        &load.kernel(name, to.dtype),
        over_packs(packs, queue),
        &[from.into(), to.into(), Arg::U64(count as u64)],
    )
}

/// See [`CopyColumns`]: one kernel for both parts. An absent part has no columns.
pub(super) fn copy_columns(op: &CopyColumns, queue: &Queue<'_>) -> Result<()> {
    let count = op.input.elements();
    let [a, b] = op.parts;
    let first = |part: Option<ColumnRange>| Arg::U32(part.map_or(0, |part| part.first as u32));
    let columns = |part: Option<ColumnRange>| Arg::U32(part.map_or(0, |part| part.output.shape.last() as u32));
    let output = |part: Option<ColumnRange>| part.map(|part| part.output).into();
    // Values of four bytes are copied as they are.
    let name = if op.output_dtype() == DType::Bf16 { "copy_columns_bf16" } else { "copy_columns_words" };
    queue.launch(
        name,
        over_packs(count, queue),
        &[
            op.input.into(),
            output(a),
            first(a),
            columns(a),
            output(b),
            first(b),
            columns(b),
            Arg::U64(count as u64),
            Arg::U32(op.input.shape.last() as u32),
        ],
    )
}
