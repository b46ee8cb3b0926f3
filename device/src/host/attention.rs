//! Causal attention.

use super::Pool;
use crate::ops::*;

/// See [`Attention`].
pub(super) fn attention(_op: &Attention, _pool: &Pool) {
    unimplemented!()
}

/// See [`AttentionBackward`].
pub(super) fn attention_backward(_op: &AttentionBackward, _pool: &Pool) {
    unimplemented!()
}
