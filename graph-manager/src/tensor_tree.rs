//! The tensors that pass from region to region.

use std::cell::RefCell;

use device::Tensor;

use crate::error::Result;

thread_local! {
    /// What [`structure`] has noted so far. `None` if nobody asks.
    static NOTED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// Notes a number that the structure of a tensor tree depends on, if somebody asks for the structure.
fn note(number: usize) {
    NOTED.with_borrow_mut(|noted| noted.iter_mut().for_each(|noted| noted.push(number)));
}

/// The structure of a tensor tree, as far as the tree's type leaves the structure open: in order, the length of each
/// list, and for each optional part whether it is there. Trees of other code are looked through too, since they map
/// their parts.
pub(crate) fn structure(tree: &impl TensorTree) -> Result<Vec<usize>> {
    NOTED.set(Some(Vec::new()));
    let mapped = tree.map(&mut |_, tensor| Ok(tensor));
    let noted = NOTED.take().unwrap_or_default();
    mapped.map(|_| noted)
}

/// A few named tensors: the input or the output of a region. (JAX calls such a structure a pytree.)
///
/// An enum names the tensors of each variant differently. By the names a [`Capture`](crate::Capture) tells apart two
/// variants whose tensors have the same shapes: each has a graph of its own. Graphed layers have one graph, that of their
/// sample, and are given its variant alone.
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
        note(self.len());
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
        note(usize::from(self.is_some()));
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
