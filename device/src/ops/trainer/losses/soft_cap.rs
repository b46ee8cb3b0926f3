//! A bound of logits.

use crate::ops::{Operation, ensure, ensure_float, tensors};
use crate::{Result, Tensor};

/// `values = cap * tanh(values / cap)`, elementwise and in place (Gemma Team, 2024). For logits that are sampled from; the
/// operations of the cross-entropy bound them themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftCap {
    /// Any shape, updated.
    pub values: Tensor,
    /// The bound, above 0.
    pub cap: f32,
}

impl Operation for SoftCap {
    const NAME: &'static str = "soft_cap";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("values", self.values)])?;
        check_cap(Self::NAME, Some(self.cap))
    }

    tensors! { update values }
}

/// Fails on a cap that bounds nothing.
pub(crate) fn check_cap(op: &'static str, cap: Option<f32>) -> Result<()> {
    ensure(op, cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()), || format!("a soft cap of {cap:?} is not above 0"))
}
