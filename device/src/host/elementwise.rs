//! Copies, sums and constants.

use super::{Pool, view};
use crate::ops::{
    Add, AddPartialColumns, BiasGrad, Copy, CopyColumns, Fill, Move, Multiply, OrderRows, PartialColumns, Poison, RowOrder,
    SequenceShare,
};
use crate::{DType, Element, F8E4M3, F8E5M2, Float, Tensor, bf16};

/// Elements of one task.
pub(super) const CHUNK: usize = 1 << 14;

/// Calls `$body` with `$float` standing for the tensor's floating type.
macro_rules! with_float {
    ($dtype:expr, $float:ident => $body:expr) => {
        match $dtype {
            crate::DType::F32 => {
                type $float = f32;
                $body
            }
            _ => {
                type $float = crate::bf16;
                $body
            }
        }
    };
}
pub(super) use with_float;

/// See [`Add`].
pub(super) fn add(op: &Add, pool: &Pool) {
    with_float!(op.output.dtype, T => {
        if op.output.address == op.a.address {
            let b = view::read::<T>(&op.b);
            map_in_place::<T>(&op.output, pool, |i, x| x + b[i].to_f32());
        } else {
            let (a, b) = (view::read::<T>(&op.a), view::read::<T>(&op.b));
            map::<T>(&op.output, pool, |i| a[i].to_f32() + b[i].to_f32());
        }
    });
}

/// See [`Multiply`].
pub(super) fn multiply(op: &Multiply, pool: &Pool) {
    let factor = view::read::<f32>(&op.factor)[0];
    with_float!(op.output.dtype, T => {
        if op.output.address == op.input.address {
            map_in_place::<T>(&op.output, pool, |_, x| factor * x);
        } else {
            let input = view::read::<T>(&op.input);
            map::<T>(&op.output, pool, |i| factor * input[i].to_f32());
        }
    });
}

/// `output[i] = f(i)`.
#[inline(always)]
pub(super) fn map<T: Float>(output: &Tensor, pool: &Pool, f: impl Fn(usize) -> f32 + Send + Sync) {
    pool.for_each_chunk(view::write::<T>(output), CHUNK, |chunk, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = T::from_f32(f(chunk * CHUNK + i)));
    });
}

/// `output[i] = f(i, output[i])`.
#[inline(always)]
pub(super) fn map_in_place<T: Float>(output: &Tensor, pool: &Pool, f: impl Fn(usize, f32) -> f32 + Send + Sync) {
    pool.for_each_chunk(view::write::<T>(output), CHUNK, |chunk, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = T::from_f32(f(chunk * CHUNK + i, out.to_f32())));
    });
}

/// See [`Copy`].
pub(super) fn copy(op: &Copy, pool: &Pool) {
    match (op.input.dtype, op.output.dtype) {
        (DType::F32, DType::Bf16) => convert::<f32, bf16>(op, pool),
        (DType::Bf16, DType::F32) => convert::<bf16, f32>(op, pool),
        (DType::F32, _) => duplicate::<f32>(op, pool),
        (DType::Bf16, _) => duplicate::<bf16>(op, pool),
        (DType::I32, _) => duplicate::<i32>(op, pool),
        (DType::F8E4M3, _) => duplicate::<F8E4M3>(op, pool),
        (DType::F8E5M2, _) => duplicate::<F8E5M2>(op, pool),
        (DType::U8, _) => duplicate::<u8>(op, pool),
    }
}

fn convert<A: Float, B: Float>(op: &Copy, pool: &Pool) {
    let input = view::read::<A>(&op.input);
    map::<B>(&op.output, pool, |i| input[i].to_f32());
}

/// See [`Move`].
pub(super) fn move_bytes(op: &Move, pool: &Pool) {
    duplicate::<u8>(&Copy { input: op.input.as_bytes(), output: op.output.as_bytes() }, pool);
}

fn duplicate<T: Element>(op: &Copy, pool: &Pool) {
    let input = view::read::<T>(&op.input);
    pool.for_each_chunk(view::write::<T>(&op.output), CHUNK, |chunk, out| {
        out.copy_from_slice(&input[chunk * CHUNK..][..out.len()]);
    });
}

/// See [`CopyColumns`].
pub(super) fn copy_columns(op: &CopyColumns, pool: &Pool) {
    match (op.input.dtype, op.output_dtype()) {
        (DType::I32, _) => columns::<i32, i32>(op, pool, |x| x),
        (_, DType::Bf16) => columns::<f32, bf16>(op, pool, bf16::from_f32),
        _ => columns::<f32, f32>(op, pool, |x| x),
    }
}

fn columns<A: Element, B: Element>(op: &CopyColumns, pool: &Pool, convert: impl Fn(A) -> B + Send + Sync) {
    let (input, width) = (view::read::<A>(&op.input), op.input.shape.last());
    for part in op.parts.iter().flatten() {
        let count = part.output.shape.last();
        pool.for_each_chunk(view::write::<B>(&part.output), count.max(1), |row, out| {
            let from = &input[row * width + part.first..];
            out.iter_mut().enumerate().for_each(|(at, out)| *out = convert(from[part.share.position(at, count)]));
        });
    }
}

/// See [`OrderRows`].
pub(super) fn order_rows(op: &OrderRows, pool: &Pool) {
    let [from, to] = op.from_and_to();
    let &[ranks, batch, tokens, width] = op.by_rank.shape.sizes() else { return };
    let bytes = width * from.dtype.size();
    let (input, row_of) = (view::read::<u8>(&from.as_bytes()), |rank: usize, sample: usize, token: usize| {
        let position = SequenceShare { rank, ranks }.position(token, tokens);
        [(rank * batch + sample) * tokens + token, sample * ranks * tokens + position]
    });
    // For each row that is written, the one that is read.
    let mut sources = vec![0; ranks * batch * tokens];
    for at in 0..sources.len() {
        let [by_rank, by_position] = row_of(at / tokens / batch, at / tokens % batch, at % tokens);
        match op.to {
            RowOrder::ByPosition => sources[by_position] = by_rank,
            RowOrder::ByRank => sources[by_rank] = by_position,
        }
    }
    pool.for_each_chunk(view::write::<u8>(&to.as_bytes()), bytes.max(1), |row, out| {
        out.copy_from_slice(&input[sources[row] * bytes..][..bytes]);
    });
}

/// See [`Fill`].
pub(super) fn fill(op: &Fill, pool: &Pool) {
    with_float!(op.output.dtype, T => map::<T>(&op.output, pool, |_| op.value));
}

/// See [`Poison`].
pub(super) fn poison(op: &Poison, pool: &Pool) {
    let bytes = op.output.as_bytes();
    pool.for_each_chunk(view::write::<u8>(&bytes), CHUNK, |_, out| out.fill(0xff));
}

/// Rows summed by one task.
const ROWS: usize = 256;

/// See [`BiasGrad`].
pub(super) fn bias_grad(op: &BiasGrad, pool: &Pool) {
    with_float!(op.grad_output.dtype, T => {
        let columns = op.grad_output.shape.last();
        let grad = view::read::<T>(&op.grad_output);
        let partial = pool.map(grad.len().div_ceil(ROWS * columns), |chunk| {
            let rows = &grad[chunk * ROWS * columns..grad.len().min((chunk + 1) * ROWS * columns)];
            column_sums(columns, rows.chunks(columns), |x| x.to_f32())
        });
        store_sums(&partial, &op.grad_bias, op.accumulate);
    });
}

/// Sums rows of `columns` elements.
pub(super) fn column_sums<'a, T: 'a>(
    columns: usize,
    rows: impl Iterator<Item = &'a [T]>,
    f: impl Fn(&T) -> f32,
) -> Vec<f32> {
    let mut sums = vec![0.0f32; columns];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f(x));
    }
    sums
}

/// See [`AddPartialColumns`].
pub(super) fn add_partial_columns(op: &AddPartialColumns) {
    for PartialColumns { partial, output } in op.sums.iter() {
        let columns = partial.shape.last();
        let parts: Vec<Vec<f32>> = view::read::<f32>(partial).chunks(columns).map(<[f32]>::to_vec).collect();
        store_sums(&parts, output, op.accumulate);
    }
}

/// Adds partial sums in order: to the values of `output` with `accumulate`, else to 0.
pub(super) fn store_sums(partial: &[Vec<f32>], output: &Tensor, accumulate: bool) {
    let output = view::write::<f32>(output);
    let mut total = vec![0.0f32; output.len()];
    for sums in partial {
        total.iter_mut().zip(sums).for_each(|(total, x)| *total += x);
    }
    for (out, total) in output.iter_mut().zip(total) {
        *out = if accumulate { *out + total } else { total };
    }
}
