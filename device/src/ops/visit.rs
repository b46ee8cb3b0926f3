//! Goes through the tensors that a value names.

use std::sync::Arc;

use crate::Tensor;

/// A value that names tensors: a field of an operation.
pub(crate) trait Visit {
    /// Shows `visit` every tensor of it, always in the same order.
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor));
}

/// Shows `visit` the tensors of one field after the other.
pub(crate) fn visit_all<const N: usize>(visit: &mut dyn FnMut(&mut Tensor), fields: [&mut dyn Visit; N]) {
    fields.into_iter().for_each(|field| field.visit(visit));
}

impl Visit for Tensor {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit(self);
    }
}

impl<T: Visit> Visit for Option<T> {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        self.iter_mut().for_each(|value| value.visit(visit));
    }
}

impl Visit for (Tensor, Tensor) {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.0, &mut self.1]);
    }
}

impl<T: Visit, const N: usize> Visit for [T; N] {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        self.iter_mut().for_each(|value| value.visit(visit));
    }
}

impl<T: Visit> Visit for Vec<T> {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        self.iter_mut().for_each(|value| value.visit(visit));
    }
}

/// A slice that operations share is copied first: the others keep theirs.
impl<T: Visit + Clone> Visit for Arc<[T]> {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        Arc::make_mut(self).iter_mut().for_each(|value| value.visit(visit));
    }
}
