//! Rotary position embedding.

use crate::Float;
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::Rotary;

impl HostKernel for Rotary {
    fn run(&self, pool: &Pool) {
        with_float!(self.qkv.dtype, T => rotate::<T>(self, pool));
    }
}

fn rotate<T: Float>(op: &Rotary, pool: &Pool) {
    let width = op.qkv.shape.last();
    let seq = op.qkv.shape.sizes()[1];
    let head_dim = width / (op.heads + 2 * op.kv_heads);
    let half = head_dim / 2;
    let table = view::read::<f32>(&op.table);
    let sign = if op.inverse { -1.0 } else { 1.0 };
    pool.for_each_chunk(view::write::<T>(&op.qkv), width, |row, values| {
        let angles = &table[row % seq * half * 2..][..half * 2];
        for head in values.chunks_mut(head_dim).take(op.heads + op.kv_heads) {
            let (first, second) = head.split_at_mut(half);
            for i in 0..half {
                let (cos, sin) = (angles[2 * i], sign * angles[2 * i + 1]);
                let (a, b) = (first[i].to_f32(), second[i].to_f32());
                first[i] = T::from_f32(a * cos - b * sin);
                second[i] = T::from_f32(a * sin + b * cos);
            }
        }
    });
}
