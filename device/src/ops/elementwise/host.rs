//! Copies, sums and constants.

use crate::host::{CHUNK, HostKernel, Pool, map, map_in_place, view, with_float};
use crate::ops::{Add, Copy, CopyColumns, Fill, Move, Multiply, Poison};
use crate::{DType, Element, F8E4M3, F8E5M2, Float, bf16};

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
