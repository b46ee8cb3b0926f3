//! Token and position embedding.

use super::Pool;
use crate::ops::*;

/// See [`Embedding`].
pub(super) fn embedding(_op: &Embedding, _pool: &Pool) {
    unimplemented!()
}

/// See [`EmbeddingBackward`].
pub(super) fn embedding_backward(_op: &EmbeddingBackward, _pool: &Pool) {
    unimplemented!()
}
