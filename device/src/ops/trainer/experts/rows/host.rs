//! From the order of tokens to that of experts, and back.

use crate::Float;
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{CombineRows, GatherRows};

impl HostKernel for GatherRows {
    fn run(&self, pool: &Pool) {
        let (input, rows) = (view::read::<u8>(&self.input.as_bytes()), view::read::<i32>(&self.rows));
        let (k, line) = (rows.len() / self.input.shape.rows(), self.input.shape.last() * self.input.dtype.size());
        let mut token_of = vec![None; self.output.shape.rows()];
        for (pair, row) in rows.iter().enumerate().filter(|(_, row)| **row >= 0) {
            token_of[*row as usize] = Some(pair / k);
        }
        pool.for_each_chunk(view::write::<u8>(&self.output.as_bytes()), line, |row, out| {
            if let Some(token) = token_of[row] {
                out.copy_from_slice(&input[token * line..][..line]);
            }
        });
    }
}

impl HostKernel for CombineRows {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => combine::<T>(self, pool));
    }
}

fn combine<T: Float>(op: &CombineRows, pool: &Pool) {
    let (input, rows) = (view::read::<T>(&op.input), view::read::<i32>(&op.rows));
    let also = op.also.as_ref().map(view::read::<f32>);
    let (k, width) = (op.rows.shape.last(), op.output.shape.last());
    pool.for_each_chunk(view::write::<T>(&op.output), width, |token, out| {
        let mut sums = vec![0.0; width];
        for row in rows[token * k..][..k].iter().filter(|row| **row >= 0) {
            let row = &input[*row as usize * width..][..width];
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f32());
        }
        if let Some(also) = also {
            sums.iter_mut().zip(&also[token * width..]).for_each(|(sum, x)| *sum += x);
        }
        out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::from_f32(*sum));
    });
}
