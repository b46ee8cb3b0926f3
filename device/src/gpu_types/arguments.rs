//! The arguments of our own kernels: one by one, or a struct by value.

use crate::Tensor;

/// An argument of a kernel, by its type there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    /// A pointer to device memory; 0 is the null pointer.
    Pointer(u64),
    /// `unsigned`.
    U32(u32),
    /// `long long` or `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
}

/// Arguments of a kernel: first pointers, tensors or [`Arg`]s, then numbers by type.
macro_rules! args {
    ($($first:expr),+ $(; $kind:ident: $($number:expr),+)*) => {
        &[
            $($crate::cuda::Arg::from($first),)+
            $($($crate::cuda::Arg::$kind($number as _),)+)*
        ]
    };
}
pub(crate) use args;

impl Arg {
    /// Bytes of the argument, as kernels take it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Arg::Pointer(_) | Arg::U64(_) => 8,
            Arg::U32(_) | Arg::F32(_) => 4,
        }
    }
}

impl From<Tensor> for Arg {
    fn from(tensor: Tensor) -> Arg {
        Arg::Pointer(tensor.value())
    }
}

impl From<Option<Tensor>> for Arg {
    fn from(tensor: Option<Tensor>) -> Arg {
        Arg::Pointer(tensor.value())
    }
}

/// A struct that a kernel takes by value: its fields by type, in the kernel's order. [`fill`] makes one.
macro_rules! kernel_struct {
    ($(#[$doc:meta])* $name:ident { $($kind:ty: $($field:ident),+;)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(crate) struct $name { $($(pub(crate) $field: $kind,)+)+ }
    };
}
pub(crate) use kernel_struct;

/// A [`kernel_struct`]: first the fields that have the names of a value's, then others with a [`Field`], or variables of
/// their names; those that are left from another struct.
macro_rules! fill {
    ($name:ident: $($of:ident.{$($same:ident),+}),+ $(; $($more:ident $(: $value:expr)?),+)? $(; ..$rest:expr)?) => {
        $name {
            $($($same: $crate::cuda::Field::value($of.$same),)+)+
            $($($more: $crate::cuda::Field::value(fill!(@ $more $($value)?)),)+)?
            $(..$rest)?
        }
    };
    (@ $field:ident) => { $field };
    (@ $field:ident $value:expr) => { $value };
}
pub(crate) use fill;

/// A value that a field of a [`kernel_struct`] is made from: an address, a size, or an answer.
pub(crate) trait Field<T> {
    /// The field, as the kernel takes it.
    fn value(self) -> T;
}

impl<T: bytemuck::Pod> Field<T> for T {
    fn value(self) -> T {
        self
    }
}

impl Field<u64> for Tensor {
    fn value(self) -> u64 {
        self.address
    }
}

/// Without a tensor the null pointer.
impl Field<u64> for Option<Tensor> {
    fn value(self) -> u64 {
        self.map_or(0, |tensor| tensor.address)
    }
}

macro_rules! size_or_answer {
    ($($kind:ty: $($from:ty),+;)+) => {
        $($(impl Field<$kind> for $from {
            fn value(self) -> $kind {
                self as $kind
            }
        })+)+
    };
}
size_or_answer! { u32: usize, bool; u64: usize; i32: usize, bool; }
