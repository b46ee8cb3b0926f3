//! Tensors as slices. Only here do host kernels turn addresses into memory.
//!
//! The reasons that make this sound, in three parts:
//!
//! 1. **The memory is there.** Before an operation or a copy runs, and before a graph is launched after anything was freed,
//!    the device checks that every tensor lies in an area that is allocated (`Core::check_live`). Areas of the host are
//!    zeroed when they are allocated, and every bit pattern is a value of an [`Element`].
//! 2. **One operation at a time.** A device belongs to one thread. Operations run on it one after the other, each to
//!    its end. Its threads work on parts of the slices that are taken here, and no slice outlives the operation.
//! 3. **Transfers are waited for.** Only transfers between ranks run beside operations. They write to their output until
//!    they were waited for, and a stream or graph does that before work that is ordered after them. Work that touches
//!    the output without being ordered after the transfer is a race of the caller's. Nothing here can rule it out; the
//!    checker reports it.
#![allow(unsafe_code)]

use std::borrow::Cow;

use super::declared::{check_read, check_write};
use crate::{DType, Element, F8E4M3, F8E5M2, Float, Tensor, bf16};

/// The elements of `tensor`, to read.
///
/// The lifetime is chosen by the caller, and must end with the operation: kernels keep no slice.
///
/// # Panics
/// If the tensor is of another type than `T`, or begins within an element, or the device checks and the operation that runs
/// did not declare the tensor: the kernel has a bug.
pub(crate) fn read<'a, T: Element>(tensor: &Tensor) -> &'a [T] {
    assert!(tensor.dtype == T::DTYPE && tensor.address.is_multiple_of(align_of::<T>() as u64));
    if tensor.elements() == 0 {
        return &[];
    }
    check_read(tensor);
    // SAFETY: the range lies in memory that is allocated and initialised (1), and it is aligned, see above. Nobody
    // writes to it while the slice lives: not another operation (2), and not a transfer (3). Nor does this operation:
    // it takes a slice to write only of memory without another slice.
    unsafe { std::slice::from_raw_parts(tensor.address as *const T, tensor.elements()) }
}

/// The elements of `tensor`, to write. A kernel takes one mutable slice of a buffer and no other slice that overlaps
/// it. A kernel of an operation that may work in place handles that case separately.
///
/// # Panics
/// As [`read`].
pub(crate) fn write<'a, T: Element>(tensor: &Tensor) -> &'a mut [T] {
    assert!(tensor.dtype == T::DTYPE && tensor.address.is_multiple_of(align_of::<T>() as u64));
    if tensor.elements() == 0 {
        return &mut [];
    }
    check_write(tensor);
    // SAFETY: as in `read`. The operation has no other slice of this range, see above.
    unsafe { std::slice::from_raw_parts_mut(tensor.address as *mut T, tensor.elements()) }
}

/// The elements of a floating tensor as f32. They are copied only if the tensor is of another type.
pub(crate) fn to_f32<'a>(tensor: &Tensor) -> Cow<'a, [f32]> {
    match tensor.dtype {
        DType::F32 => read::<f32>(tensor).into(),
        DType::F8E4M3 => widened::<F8E4M3>(tensor).into(),
        DType::F8E5M2 => widened::<F8E5M2>(tensor).into(),
        _ => widened::<bf16>(tensor).into(),
    }
}

fn widened<T: Float>(tensor: &Tensor) -> Vec<f32> {
    read::<T>(tensor).iter().map(|x| x.to_f32()).collect()
}

/// Sets every byte of `tensor` to 0, of whatever type it is.
pub(crate) fn zero(tensor: &Tensor) {
    write::<u8>(&tensor.as_bytes()).fill(0);
}

/// A `repr(C)` block such as [`crate::ops::Control`], read by value.
pub(crate) fn read_block<T: bytemuck::Pod>(tensor: &Tensor) -> T {
    bytemuck::pod_read_unaligned(&read::<u8>(tensor)[..size_of::<T>()])
}

/// Overwrites a `repr(C)` block.
pub(crate) fn write_block<T: bytemuck::Pod>(tensor: &Tensor, value: &T) {
    write::<u8>(tensor)[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
}
