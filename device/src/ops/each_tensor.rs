//! Goes through the tensors that a value names.

use std::sync::Arc;

use super::Accesses;
use crate::Tensor;

/// A value that names tensors: a field of an operation.
pub(crate) trait HasTensors: Clone {
    /// Calls `each` with every tensor, always in the same order.
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor));
}

/// The tensors of an operation, by field, in the order in which [`Operation::each_tensor`](super::Operation::each_tensor) shows them:
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
        fn each_tensor(&mut self, each: &mut dyn FnMut(&mut $crate::Tensor)) {
            $($crate::ops::HasTensors::each_tensor(&mut self.$field, each);)+
        }
    };
}
pub(crate) use tensors;

impl Accesses {
    /// Adds the tensors of a field that is read.
    pub(crate) fn read(&mut self, field: &impl HasTensors) {
        field.clone().each_tensor(&mut |tensor| self.reads.push(*tensor));
    }

    /// Adds the tensors of a field that is written.
    pub(crate) fn write(&mut self, field: &impl HasTensors) {
        field.clone().each_tensor(&mut |tensor| self.writes.push(*tensor));
    }

    /// Adds the tensors of a field that is updated in place.
    pub(crate) fn update(&mut self, field: &impl HasTensors) {
        self.read(field);
        self.write(field);
    }
}

impl HasTensors for Tensor {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        each(self);
    }
}

impl<T: HasTensors> HasTensors for Option<T> {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        self.iter_mut().for_each(|value| value.each_tensor(each));
    }
}

impl HasTensors for (Tensor, Tensor) {
    tensors! { 0, 1 }
}

impl<T: HasTensors, const N: usize> HasTensors for [T; N] {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        self.iter_mut().for_each(|value| value.each_tensor(each));
    }
}

impl<T: HasTensors> HasTensors for Vec<T> {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        self.iter_mut().for_each(|value| value.each_tensor(each));
    }
}

/// A slice that operations share is copied first: the others keep theirs.
impl<T: HasTensors> HasTensors for Arc<[T]> {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        Arc::make_mut(self).iter_mut().for_each(|value| value.each_tensor(each));
    }
}
