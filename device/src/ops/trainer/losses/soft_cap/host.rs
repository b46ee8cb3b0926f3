//! Bounds of logits.

use crate::Float;
use crate::host::parts::{Bound, Capped};
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::SoftCap;

impl HostKernel for SoftCap {
    fn run(&self, pool: &Pool) {
        with_float!(self.values.dtype, T => {
            pool.for_each_chunk(view::write::<T>(&self.values), CHUNK, |_, values| {
                values.iter_mut().for_each(|x| *x = T::from_f32(Capped(self.cap).value(x.to_f32())));
            });
        });
    }
}

/// Values of a task.
const CHUNK: usize = 4096;
