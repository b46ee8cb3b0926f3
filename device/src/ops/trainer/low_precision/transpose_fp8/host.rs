//! The transposed copy of an 8-bit matrix.

use crate::host::{HostKernel, Pool, view};
use crate::ops::TransposeFp8;
use crate::{DType, F8E4M3, F8E5M2, Float};

impl HostKernel for TransposeFp8 {
    fn run(&self, pool: &Pool) {
        match self.input.dtype {
            DType::F8E5M2 => transpose::<F8E5M2>(self, pool),
            _ => transpose::<F8E4M3>(self, pool),
        }
    }
}

fn transpose<T: Float>(op: &TransposeFp8, pool: &Pool) {
    let (rows, columns) = (op.input.shape.rows(), op.input.shape.last());
    if rows == 0 {
        return;
    }
    let input = view::read::<T>(&op.input);
    pool.for_each_chunk(view::write::<T>(&op.output), rows, |column, out| {
        out.iter_mut().enumerate().for_each(|(row, out)| *out = input[row * columns + column]);
    });
}
