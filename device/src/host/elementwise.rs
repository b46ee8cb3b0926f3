//! Copies, sums and constants.

use super::{HostKernel, Pool, view};
use crate::ops::{
    Add, AddPartialColumns, BiasGrad, Copy, CopyColumns, Fill, Move, Multiply, OrderRows, PartialColumns, Poison,
    RowOrder, SequenceShare,
};
use crate::{DType, Element, F8E4M3, F8E5M2, Float, Tensor, bf16};

/// Elements of one task.
pub(in crate::host) const CHUNK: usize = 1 << 14;

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
#[cfg(feature = "trainer-ops")]
pub(in crate::host) use with_float;

impl HostKernel for Add {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => {
            if self.output.address == self.a.address {
                let b = view::read::<T>(&self.b);
                map_in_place::<T>(&self.output, pool, |i, x| x + b[i].to_f32());
            } else {
                let (a, b) = (view::read::<T>(&self.a), view::read::<T>(&self.b));
                map::<T>(&self.output, pool, |i| a[i].to_f32() + b[i].to_f32());
            }
        });
    }
}

impl HostKernel for Multiply {
    fn run(&self, pool: &Pool) {
        let factor = view::read::<f32>(&self.factor)[0];
        with_float!(self.output.dtype, T => {
            if self.output.address == self.input.address {
                map_in_place::<T>(&self.output, pool, |_, x| factor * x);
            } else {
                let input = view::read::<T>(&self.input);
                map::<T>(&self.output, pool, |i| factor * input[i].to_f32());
            }
        });
    }
}

/// `output[i] = f(i)`.
#[inline(always)]
pub(in crate::host) fn map<T: Float>(output: &Tensor, pool: &Pool, f: impl Fn(usize) -> f32 + Send + Sync) {
    pool.for_each_chunk(view::write::<T>(output), CHUNK, |chunk, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = T::from_f32(f(chunk * CHUNK + i)));
    });
}

/// `output[i] = f(i, output[i])`.
#[inline(always)]
pub(in crate::host) fn map_in_place<T: Float>(
    output: &Tensor,
    pool: &Pool,
    f: impl Fn(usize, f32) -> f32 + Send + Sync,
) {
    pool.for_each_chunk(view::write::<T>(output), CHUNK, |chunk, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = T::from_f32(f(chunk * CHUNK + i, out.to_f32())));
    });
}

impl HostKernel for Copy {
    fn run(&self, pool: &Pool) {
        match (self.input.dtype, self.output.dtype) {
            (DType::F32, DType::Bf16) => convert::<f32, bf16>(self, pool),
            (DType::Bf16, DType::F32) => convert::<bf16, f32>(self, pool),
            (DType::F32, _) => duplicate::<f32>(self, pool),
            (DType::Bf16, _) => duplicate::<bf16>(self, pool),
            (DType::I32, _) => duplicate::<i32>(self, pool),
            (DType::F8E4M3, _) => duplicate::<F8E4M3>(self, pool),
            (DType::F8E5M2, _) => duplicate::<F8E5M2>(self, pool),
            (DType::U16, _) => duplicate::<u16>(self, pool),
            (DType::U8, _) => duplicate::<u8>(self, pool),
        }
    }
}

fn convert<A: Float, B: Float>(op: &Copy, pool: &Pool) {
    let input = view::read::<A>(&op.input);
    map::<B>(&op.output, pool, |i| input[i].to_f32());
}

impl HostKernel for Move {
    fn run(&self, pool: &Pool) {
        duplicate::<u8>(&Copy { input: self.input.as_bytes(), output: self.output.as_bytes() }, pool);
    }
}

fn duplicate<T: Element>(op: &Copy, pool: &Pool) {
    let input = view::read::<T>(&op.input);
    pool.for_each_chunk(view::write::<T>(&op.output), CHUNK, |chunk, out| {
        out.copy_from_slice(&input[chunk * CHUNK..][..out.len()]);
    });
}

impl HostKernel for CopyColumns {
    fn run(&self, pool: &Pool) {
        match (self.input.dtype, self.output_dtype()) {
            (DType::I32, _) => columns::<i32, i32>(self, pool, |x| x),
            (_, DType::Bf16) => columns::<f32, bf16>(self, pool, bf16::from_f32),
            _ => columns::<f32, f32>(self, pool, |x| x),
        }
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

impl HostKernel for OrderRows {
    fn run(&self, pool: &Pool) {
        let [from, to] = self.source_and_target();
        let &[ranks, batch, tokens, width] = self.by_rank.shape.sizes() else { return };
        let bytes = width * from.dtype.size();
        let (input, row_of) = (view::read::<u8>(&from.as_bytes()), |rank: usize, sample: usize, token: usize| {
            let position = SequenceShare { rank, ranks }.position(token, tokens);
            [(rank * batch + sample) * tokens + token, sample * ranks * tokens + position]
        });
        // For each row that is written, the one that is read.
        let mut sources = vec![0; ranks * batch * tokens];
        for at in 0..sources.len() {
            let [by_rank, by_position] = row_of(at / tokens / batch, at / tokens % batch, at % tokens);
            match self.to {
                RowOrder::ByPosition => sources[by_position] = by_rank,
                RowOrder::ByRank => sources[by_rank] = by_position,
            }
        }
        pool.for_each_chunk(view::write::<u8>(&to.as_bytes()), bytes.max(1), |row, out| {
            out.copy_from_slice(&input[sources[row] * bytes..][..bytes]);
        });
    }
}

impl HostKernel for Fill {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => map::<T>(&self.output, pool, |_| self.value));
    }
}

impl HostKernel for Poison {
    fn run(&self, pool: &Pool) {
        let bytes = self.output.as_bytes();
        pool.for_each_chunk(view::write::<u8>(&bytes), CHUNK, |_, out| out.fill(0xff));
    }
}

/// Rows summed by one task.
const ROWS: usize = 256;

impl HostKernel for BiasGrad {
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_output.dtype, T => {
            let columns = self.grad_output.shape.last();
            let grad = view::read::<T>(&self.grad_output);
            let partial = pool.map(grad.len().div_ceil(ROWS * columns), |chunk| {
                let rows = &grad[chunk * ROWS * columns..grad.len().min((chunk + 1) * ROWS * columns)];
                column_sums(columns, rows.chunks(columns), |x| x.to_f32())
            });
            store_sums(&partial, &self.grad_bias, self.accumulate);
        });
    }
}

/// Sums rows of `columns` elements.
pub(in crate::host) fn column_sums<'a, T: 'a>(
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

impl HostKernel for AddPartialColumns {
    fn run(&self, _pool: &Pool) {
        for PartialColumns { partial, output } in self.sums.iter() {
            let columns = partial.shape.last();
            let parts: Vec<Vec<f32>> = view::read::<f32>(partial).chunks(columns).map(<[f32]>::to_vec).collect();
            store_sums(&parts, output, self.accumulate);
        }
    }
}

/// Adds partial sums in order: to the values of `output` with `accumulate`, else to 0.
pub(in crate::host) fn store_sums(partial: &[Vec<f32>], output: &Tensor, accumulate: bool) {
    let output = view::write::<f32>(output);
    let mut total = vec![0.0f32; output.len()];
    for sums in partial {
        total.iter_mut().zip(sums).for_each(|(total, x)| *total += x);
    }
    for (out, total) in output.iter_mut().zip(total) {
        *out = if accumulate { *out + total } else { total };
    }
}
