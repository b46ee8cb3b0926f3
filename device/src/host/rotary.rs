//! Rotary position embedding.

use super::Pool;
use crate::ops::*;

/// See [`Rotary`].
pub(super) fn rotary(_op: &Rotary, _pool: &Pool) {
    unimplemented!()
}
