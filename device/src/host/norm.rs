//! Normalisation.

use super::Pool;
use crate::ops::*;

/// See [`Norm`].
pub(super) fn norm(_op: &Norm, _pool: &Pool) {
    unimplemented!()
}

/// See [`NormBackward`].
pub(super) fn norm_backward(_op: &NormBackward, _pool: &Pool) {
    unimplemented!()
}
