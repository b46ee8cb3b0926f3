//! Tensors as slices. The only place where the host kernels turn addresses into memory.
#![allow(unsafe_code)]

use crate::{DType, Element, Tensor};

/// The elements of `tensor`, to read.
///
/// The lifetime is the kernel's call: kernels keep no slice. Must be of type `T`.
///
/// # Panics
/// If the tensor is of another type: a kernel that asks for it is wrong.
pub(crate) fn read<'a, T: Element>(tensor: &Tensor) -> &'a [T] {
    assert_eq!(tensor.dtype, T::DTYPE);
    if tensor.elements() == 0 {
        return &[];
    }
    // SAFETY: the device checked at submission that the range lies in a live area of host memory, which is aligned to
    // 64 bytes with every buffer at a multiple of 64; one thread submits, so no other operation runs meanwhile.
    unsafe { std::slice::from_raw_parts(tensor.address as *const T, tensor.elements()) }
}

/// The elements of `tensor`, to write. A kernel takes one mutable slice of a buffer and no other slice that overlaps
/// it: where an operation may work in place, the kernel handles that case apart.
///
/// # Panics
/// If the tensor is of another type.
pub(crate) fn write<'a, T: Element>(tensor: &Tensor) -> &'a mut [T] {
    assert_eq!(tensor.dtype, T::DTYPE);
    if tensor.elements() == 0 {
        return &mut [];
    }
    // SAFETY: as in `read`; the kernel holds no other slice of this range, see above.
    unsafe { std::slice::from_raw_parts_mut(tensor.address as *mut T, tensor.elements()) }
}

/// Sets every byte of `tensor` to 0, of whatever type it is.
pub(crate) fn zero(tensor: &Tensor) {
    write::<u8>(&Tensor { shape: [tensor.bytes()].into(), dtype: DType::U8, ..*tensor }).fill(0);
}

/// A `repr(C)` block such as [`crate::ops::Control`], read by value.
pub(crate) fn read_block<T: bytemuck::Pod>(tensor: &Tensor) -> T {
    bytemuck::pod_read_unaligned(&read::<u8>(tensor)[..size_of::<T>()])
}

/// Overwrites a `repr(C)` block.
pub(crate) fn write_block<T: bytemuck::Pod>(tensor: &Tensor, value: &T) {
    write::<u8>(tensor)[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
}
