//! Bounds of logits and of attention scores.

use super::elementwise::with_float;
use super::math::tanh;
use super::{Pool, view};
use crate::Float;
use crate::ops::SoftCap;

/// A bound of numbers, applied before the softmax.
pub(super) trait Bound: Copy + Sync {
    /// The number that counts.
    fn value(self, x: f32) -> f32;

    /// The derivative of [`Bound::value`], from the number that it gave.
    fn slope(self, value: f32) -> f32;
}

/// Numbers count as they are.
#[derive(Clone, Copy)]
pub(super) struct Unbounded;

impl Bound for Unbounded {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn slope(self, _: f32) -> f32 {
        1.0
    }
}

/// `cap * tanh(x / cap)`.
#[derive(Clone, Copy)]
pub(super) struct Capped(pub(super) f32);

impl Bound for Capped {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        self.0 * tanh(x / self.0)
    }

    #[inline(always)]
    fn slope(self, value: f32) -> f32 {
        let tanh = value / self.0;
        1.0 - tanh * tanh
    }
}

/// Runs an expression with `$bound` as the [`Bound`] of an optional cap.
macro_rules! with_bound {
    ($cap:expr, $bound:ident => $body:expr) => {
        match $cap {
            None => {
                let $bound = crate::host::soft_cap::Unbounded;
                $body
            }
            Some(cap) => {
                let $bound = crate::host::soft_cap::Capped(cap);
                $body
            }
        }
    };
}
pub(super) use with_bound;

/// See [`SoftCap`].
pub(super) fn soft_cap(op: &SoftCap, pool: &Pool) {
    with_float!(op.values.dtype, T => {
        pool.for_each_chunk(view::write::<T>(&op.values), CHUNK, |_, values| {
            values.iter_mut().for_each(|x| *x = T::from_f32(Capped(op.cap).value(x.to_f32())));
        });
    });
}

/// Values of a task.
const CHUNK: usize = 4096;
