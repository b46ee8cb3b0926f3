//! Bounds of logits and of attention scores.

use super::math::tanh;

/// A bound of numbers, applied before the softmax.
pub(crate) trait Bound: Copy + Sync {
    /// The number that counts.
    fn value(self, x: f32) -> f32;

    /// The derivative of [`Bound::value`], from the number that it gave.
    fn slope(self, value: f32) -> f32;
}

/// Numbers count as they are.
#[derive(Clone, Copy)]
pub(crate) struct Unbounded;

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
pub(crate) struct Capped(pub(crate) f32);

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
                let $bound = crate::host::parts::Unbounded;
                $body
            }
            Some(cap) => {
                let $bound = crate::host::parts::Capped(cap);
                $body
            }
        }
    };
}
pub(crate) use with_bound;
