//! A bound of logits.

mod host;

use crate::cuda::{KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_packs};
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

impl KernelOperation for SoftCap {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.values.elements(), self.values.dtype);
        let load = LoadWidth::of(count, [self.values]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(&load.kernel("soft_cap", dtype), grid, args! { self.values; F32: self.cap; U64: count })
    }
}
