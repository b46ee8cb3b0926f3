//! Goes through the tensors that a value names.

use std::sync::Arc;

use super::Accesses;
use crate::Tensor;

/// A value that names tensors: a field of an operation.
pub(crate) trait Visit: Clone {
    /// Shows `visit` every tensor of it, always in the same order.
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor));
}

/// The tensors of an operation, by field, in the order in which [`Operation::visit`](super::Operation::visit) shows them:
/// `read`, `write`, `update` (both), or `add[flag]` (written, and read if the field `flag` is true). Without these words,
/// the fields alone: an operation then has its own `accesses`, and other values have none.
macro_rules! tensors {
    ($($access:ident $([$flag:ident])? $($field:ident),+);+) => {
        fn accesses(&self) -> $crate::ops::Accesses {
            let mut all = $crate::ops::Accesses::default();
            $(tensors!(@ all self $access [$($flag)?] $($field)+);)+
            all
        }

        tensors! { $($($field),+),+ }
    };
    (@ $all:ident $self:ident $access:ident [] $($field:ident)+) => { $($all.$access(&$self.$field);)+ };
    (@ $all:ident $self:ident add [$flag:ident] $($field:ident)+) => {
        $(if $self.$flag { $all.update(&$self.$field) } else { $all.write(&$self.$field) })+
    };
    ($($field:tt),+) => {
        fn visit(&mut self, visit: &mut dyn FnMut(&mut $crate::Tensor)) {
            $($crate::ops::Visit::visit(&mut self.$field, visit);)+
        }
    };
}
pub(crate) use tensors;

impl Accesses {
    /// Adds the tensors of a field that is read.
    pub(crate) fn read(&mut self, field: &impl Visit) {
        field.clone().visit(&mut |tensor| self.reads.push(*tensor));
    }

    /// Adds the tensors of a field that is written.
    pub(crate) fn write(&mut self, field: &impl Visit) {
        field.clone().visit(&mut |tensor| self.writes.push(*tensor));
    }

    /// Adds the tensors of a field that is updated in place.
    pub(crate) fn update(&mut self, field: &impl Visit) {
        self.read(field);
        self.write(field);
    }
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
    tensors! { 0, 1 }
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
impl<T: Visit> Visit for Arc<[T]> {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        Arc::make_mut(self).iter_mut().for_each(|value| value.visit(visit));
    }
}
