//! What the forward of attention leaves for the backward.

use device::Tensor;

/// The output of attention, with the statistics that backward needs.
#[derive(Clone, Copy)]
pub(crate) struct Attended {
    /// `(batch, seq, heads * head_dim)`.
    pub(super) context: Tensor,
    /// `(batch, heads, seq)`, f32: the logarithm of each row's sum.
    pub(super) stats: Tensor,
}

impl Attended {
    pub(crate) fn tensors(&self) -> [Tensor; 2] {
        [self.context, self.stats]
    }
}

/// The gradients of an attention.
#[derive(Clone, Copy)]
pub(super) struct AttentionGrads {
    /// The gradient of the output, `(batch, seq, heads * head_dim)`.
    pub(super) context: Tensor,
    /// The gradient of queries, keys and values, `(batch, seq, (heads + 2 kv_heads) * head_dim)`, written.
    pub(super) qkv: Tensor,
}
