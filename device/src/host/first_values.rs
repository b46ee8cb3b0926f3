//! The random numbers that a parameter begins with.

use super::elementwise::CHUNK;
use super::{Pool, view};
use crate::ops::{Distribution, FirstValues};
use crate::philox;
use crate::{DType, bf16};

/// See [`FirstValues`].
pub(super) fn first_values(op: &FirstValues, pool: &Pool) {
    let value = |at: usize| {
        let element = op.element(at);
        match op.distribution {
            Distribution::Normal(std) => std * philox::normal(op.seed, op.stream, element),
            Distribution::Uniform(bound) => bound * (2.0 * philox::uniform(op.seed, op.stream, element) - 1.0),
        }
    };
    match op.output.dtype {
        DType::F32 => pool.for_each_chunk(view::write::<f32>(&op.output), CHUNK, |chunk, values| {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = value(chunk * CHUNK + i));
        }),
        _ => pool.for_each_chunk(view::write::<bf16>(&op.output), CHUNK, |chunk, values| {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = bf16::from_f32(value(chunk * CHUNK + i)));
        }),
    }
    if let Some(rounded) = &op.rounded {
        let values = view::read::<f32>(&op.output);
        pool.for_each_chunk(view::write::<bf16>(rounded), CHUNK, |chunk, rounded| {
            rounded.iter_mut().zip(&values[chunk * CHUNK..]).for_each(|(rounded, x)| *rounded = bf16::from_f32(*x));
        });
    }
}
