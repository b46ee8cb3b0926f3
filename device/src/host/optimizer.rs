//! The update.

use super::Pool;
use crate::ops::*;

/// See [`SquareSum`].
pub(super) fn square_sum(_op: &SquareSum, _pool: &Pool) {
    unimplemented!()
}

/// See [`AdamW`].
pub(super) fn adamw(_op: &AdamW, _pool: &Pool) {
    unimplemented!()
}

/// See [`Sgd`].
pub(super) fn sgd(_op: &Sgd, _pool: &Pool) {
    unimplemented!()
}

/// See [`ClipScale`].
pub(super) fn clip_scale(_op: &ClipScale) {
    unimplemented!()
}
