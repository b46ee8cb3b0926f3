//! Dropout, also after a ReLU: one task per token.

use crate::Float;
use crate::host::parts::DropoutMask;
use crate::host::{HostKernel, Pool, map, view, with_float};
use crate::ops::{Dropout, ReluDropout, ReluDropoutBackward};

impl HostKernel for Dropout {
    fn run(&self, pool: &Pool) {
        with_float!(self.output.dtype, T => apply::<T>(self, pool, |x| x));
    }
}

impl HostKernel for ReluDropout {
    fn run(&self, pool: &Pool) {
        // NaN stays: `max` would hide it.
        with_float!(self.output.dtype, T => apply::<T>(&self.dropout(), pool, |x| if x < 0.0 { 0.0 } else { x }));
    }
}

impl HostKernel for ReluDropoutBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_input.dtype, T => {
            let (output, grad) = (view::read::<T>(&self.output), view::read::<T>(&self.grad_output));
            map::<T>(&self.grad_input, pool, |i| match output[i].to_f32() {
                y if y <= 0.0 => 0.0,
                _ => grad[i].to_f32() * self.scale,
            });
        });
    }
}

/// `output = mask * before(input)`.
fn apply<T: Float>(op: &Dropout, pool: &Pool, before: impl Fn(f32) -> f32 + Send + Sync) {
    let (channels, tokens, part) = (op.input.shape.last(), op.tokens(), op.site.part);
    let mask = DropoutMask::new(&op.site);
    let in_place = op.input.address == op.output.address;
    let input = if in_place { &[] } else { view::read::<T>(&op.input) };
    pool.for_each_chunk(view::write::<T>(&op.output), channels, |row, out| {
        if !in_place {
            out.copy_from_slice(&input[row * channels..(row + 1) * channels]);
        }
        let row = part.first_row + row;
        let token = part.share.position(row % tokens, tokens);
        mask.for_each(row / tokens, token, part.first_channel, channels, |channel, factor| {
            out[channel] = T::from_f32(before(out[channel].to_f32()) * factor);
        });
    });
}
