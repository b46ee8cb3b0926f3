//! The tensors that pass from region to region.

use device::Tensor;

use crate::error::Result;

/// A few named tensors: the input or the output of a region. (JAX calls such a structure a pytree.)
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

impl<A: TensorTree, B: TensorTree> TensorTree for (A, B) {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<(A, B)> {
        Ok((self.0.map(f)?, self.1.map(f)?))
    }
}

impl<A: TensorTree, B: TensorTree, C: TensorTree> TensorTree for (A, B, C) {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<(A, B, C)> {
        Ok((self.0.map(f)?, self.1.map(f)?, self.2.map(f)?))
    }
}

impl<T: TensorTree> TensorTree for Vec<T> {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Vec<T>> {
        self.iter().map(|tree| tree.map(f)).collect()
    }
}

impl<T: TensorTree, const N: usize> TensorTree for [T; N] {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<[T; N]> {
        let mut same = self.clone();
        for tree in &mut same {
            *tree = tree.map(f)?;
        }
        Ok(same)
    }
}

impl<T: TensorTree> TensorTree for Option<T> {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Option<T>> {
        self.as_ref().map(|tree| tree.map(f)).transpose()
    }
}

/// All tensors of a tree, in order.
pub(crate) fn tensors(tree: &impl TensorTree) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    tree.map(&mut |_, tensor| {
        all.push(tensor);
        Ok(tensor)
    })?;
    Ok(all)
}
