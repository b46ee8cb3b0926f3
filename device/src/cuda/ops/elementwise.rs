//! Copies, sums and constants.

use super::shape::{LoadWidth, over_packs};
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::{
    Add, ColumnRange, Copy, CopyColumns, Fill, Move, Multiply, OrderRows, Poison, RowOrder, SequenceShare, SoftCap,
};
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

/// See [`Move`].
pub(super) fn move_bytes(op: &Move, queue: &Queue<'_>) -> Result<()> {
    match op.input.bytes() {
        0 => Ok(()),
        bytes => queue.stream.copy(op.output.address, op.input.address, bytes),
    }
}

/// See [`CopyColumns`]: one kernel for both parts. An absent part has no columns.
pub(super) fn copy_columns(op: &CopyColumns, queue: &Queue<'_>) -> Result<()> {
    let count = op.input.elements();
    let [a, b] = op.parts;
    // Where the two parts of the columns begin, and how many are in the first, and in both.
    let range = |part: Option<ColumnRange>| {
        part.map_or([0; 4], |ColumnRange { first, share, output }| {
            let columns = output.shape.last();
            let [begin, second] = share.begins(columns);
            [first + begin, first + second, share.first_part(columns), columns].map(|number| number as u32)
        })
        .map(Arg::U32)
    };
    let ([a_first, a_second, a_part, a_columns], [b_first, b_second, b_part, b_columns]) = (range(a), range(b));
    let output = |part: Option<ColumnRange>| part.map(|part| part.output).into();
    // Values of four bytes are copied as they are.
    let name = if op.output_dtype() == DType::Bf16 { "copy_columns_bf16" } else { "copy_columns_words" };
    queue.launch(
        name,
        over_packs(count, queue),
        &[
            op.input.into(),
            output(a),
            a_first,
            a_second,
            a_part,
            a_columns,
            output(b),
            b_first,
            b_second,
            b_part,
            b_columns,
            Arg::U64(count as u64),
            Arg::U32(op.input.shape.last() as u32),
        ],
    )
}

/// See [`OrderRows`].
pub(super) fn order_rows(op: &OrderRows, queue: &Queue<'_>) -> Result<()> {
    let [from, to] = op.from_and_to();
    let &[ranks, batch, tokens, width] = op.by_rank.shape.sizes() else { return Ok(()) };
    // Whole vectors are copied as they are.
    let load = LoadWidth::of(width, [from, to]);
    let (values, suffix) = match load {
        LoadWidth::Vector => (load.values(from.dtype), "words".into()),
        LoadWidth::Scalar => (1, from.dtype.to_string()),
    };
    let name = match op.to {
        RowOrder::ByPosition => "order_rows_by_position",
        RowOrder::ByRank => "order_rows_by_rank",
    };
    let part = SequenceShare { rank: 0, ranks }.first_part(tokens);
    let count = from.elements() / values;
    let sizes = [ranks, batch, tokens, width / values, part].map(|size| Arg::U32(size as u32));
    let arguments: Vec<Arg> = [from.into(), to.into(), Arg::U64(count as u64)].into_iter().chain(sizes).collect();
    queue.launch(&format!("{name}_{suffix}"), over_packs(count, queue), &arguments)
}
