//! What passes from region to region.

use device::Tensor;

use crate::error::Result;

/// A few named tensors: what a region takes and what it returns. (JAX calls such a structure a pytree.)
pub trait TensorTree: Clone + 'static {
    /// The same structure with each tensor replaced by `f(name, tensor)`.
    ///
    /// # Errors
    /// The first that `f` returns.
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl TensorTree for () {
    fn map(&self, _: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<()> {
        Ok(())
    }
}

impl TensorTree for Tensor {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f("tensor", *self)
    }
}

impl<T: TensorTree> TensorTree for Option<T> {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Option<T>> {
        self.as_ref().map(|tree| tree.map(f)).transpose()
    }
}
