//! Dropout, also after a ReLU: one task per token.

use super::dropout_mask::DropoutMask;
use super::elementwise::{map, with_float};
use super::{Pool, view};
use crate::Float;
use crate::ops::{Dropout, ReluDropout, ReluDropoutBackward};

/// See [`Dropout`].
pub(super) fn dropout(op: &Dropout, pool: &Pool) {
    with_float!(op.output.dtype, T => apply::<T>(op, pool, |x| x));
}

/// See [`ReluDropout`].
pub(super) fn relu_dropout(op: &ReluDropout, pool: &Pool) {
    // NaN stays: `max` would hide it.
    with_float!(op.output.dtype, T => apply::<T>(&op.dropout(), pool, |x| if x < 0.0 { 0.0 } else { x }));
}

/// See [`ReluDropoutBackward`].
pub(super) fn relu_dropout_backward(op: &ReluDropoutBackward, pool: &Pool) {
    with_float!(op.grad_input.dtype, T => {
        let (output, grad) = (view::read::<T>(&op.output), view::read::<T>(&op.grad_output));
        map::<T>(&op.grad_input, pool, |i| match output[i].to_f32() {
            y if y <= 0.0 => 0.0,
            _ => grad[i].to_f32() * op.scale,
        });
    });
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
