//! Dropout.

use super::Pool;
use crate::ops::*;

/// See [`Dropout`].
pub(super) fn dropout(_op: &Dropout, _pool: &Pool) {
    unimplemented!()
}
