//! Matrix product.

use super::Pool;
use crate::ops::*;

/// See [`Gemm`].
pub(super) fn gemm(_op: &Gemm, _pool: &Pool) {
    unimplemented!()
}
