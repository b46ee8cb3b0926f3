//! Losses.

use super::Pool;
use crate::ops::*;

/// See [`CrossEntropy`].
pub(super) fn cross_entropy(_op: &CrossEntropy, _pool: &Pool) {
    unimplemented!()
}

/// See [`Mse`].
pub(super) fn mse(_op: &Mse, _pool: &Pool) {
    unimplemented!()
}

/// See [`SumInto`].
pub(super) fn sum_into(_op: &SumInto, _pool: &Pool) {
    unimplemented!()
}
