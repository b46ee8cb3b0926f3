//! Dropout: one task per token.

use super::elementwise::with_float;
use super::philox::DropoutMask;
use super::{Pool, view};
use crate::Float;
use crate::ops::Dropout;

/// See [`Dropout`].
pub(super) fn dropout(op: &Dropout, pool: &Pool) {
    with_float!(op.output.dtype, T => apply::<T>(op, pool));
}

fn apply<T: Float>(op: &Dropout, pool: &Pool) {
    let (channels, tokens, first_row) = (op.input.shape.last(), op.tokens(), op.site.part.first_row);
    let mask = DropoutMask::new(&op.site);
    let in_place = op.input.address == op.output.address;
    let input = if in_place { &[] } else { view::read::<T>(&op.input) };
    pool.for_each_chunk(view::write::<T>(&op.output), channels, |row, out| {
        if !in_place {
            out.copy_from_slice(&input[row * channels..(row + 1) * channels]);
        }
        let row = first_row + row;
        mask.for_each(row / tokens, row % tokens, 0, channels, |channel, factor| {
            out[channel] = T::from_f32(out[channel].to_f32() * factor);
        });
    });
}
