//! Choices between two tensors.

use crate::Tensor;
use crate::host::{CHUNK, HostKernel, Pool, view};
use crate::ops::{Condition, Select};

impl HostKernel for Select {
    /// Values are moved as bytes.
    fn run(&self, pool: &Pool) {
        let size = self.output.dtype.size();
        match self.condition {
            Condition::Flag(flag) => {
                let chosen = if view::read::<i32>(&flag)[0] != 0 { self.a } else { self.b };
                choose(&self.output, chosen, pool, |_| true);
            }
            Condition::Mask(mask) => {
                let mask = view::read::<u8>(&mask);
                choose(&self.output, self.a, pool, |byte| mask[byte / size] != 0);
                choose(&self.output, self.b, pool, |byte| mask[byte / size] == 0);
            }
        }
    }
}

/// Copies the bytes of `input` that are chosen, unless they are there already.
fn choose(output: &Tensor, input: Tensor, pool: &Pool, chosen: impl Fn(usize) -> bool + Send + Sync) {
    if input.address == output.address {
        return;
    }
    let input = view::read::<u8>(&input.as_bytes());
    pool.for_each_chunk(view::write::<u8>(&output.as_bytes()), CHUNK, |chunk, out| {
        let first = chunk * CHUNK;
        for (at, out) in out.iter_mut().enumerate().filter(|(at, _)| chosen(first + at)) {
            *out = input[first + at];
        }
    });
}
