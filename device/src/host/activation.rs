//! Activation functions.

use super::Pool;
use crate::ops::*;

/// See [`Activation`].
pub(super) fn activation(_op: &Activation, _pool: &Pool) {
    unimplemented!()
}

/// See [`ActivationBackward`].
pub(super) fn activation_backward(_op: &ActivationBackward, _pool: &Pool) {
    unimplemented!()
}

/// See [`SwiGlu`].
pub(super) fn swiglu(_op: &SwiGlu, _pool: &Pool) {
    unimplemented!()
}

/// See [`SwiGluBackward`].
pub(super) fn swiglu_backward(_op: &SwiGluBackward, _pool: &Pool) {
    unimplemented!()
}
