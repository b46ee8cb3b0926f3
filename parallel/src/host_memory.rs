//! Reading and writing tensors in host memory as f32 values.
#![allow(unsafe_code)]

use device::{DType, Element, F8E4M3, F8E5M2, Float, Tensor, bf16};

/// The values of a tensor of a floating type, widened to f32, or the values of bytes.
pub(crate) fn read(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype {
        DType::Bf16 => read_as::<bf16>(tensor),
        DType::F8E4M3 => read_as::<F8E4M3>(tensor),
        DType::F8E5M2 => read_as::<F8E5M2>(tensor),
        DType::U8 => converted(tensor, |byte: u8| f32::from(byte)),
        _ => read_as::<f32>(tensor),
    }
}

/// Overwrites a tensor of a floating type or of bytes, rounding once. Values beyond the tensor's elements are ignored.
pub(crate) fn write(tensor: &Tensor, values: impl Iterator<Item = f32>) {
    match tensor.dtype {
        DType::Bf16 => write_as::<bf16>(tensor, values),
        DType::F8E4M3 => write_as::<F8E4M3>(tensor, values),
        DType::F8E5M2 => write_as::<F8E5M2>(tensor, values),
        DType::U8 => overwrite(tensor, values, |value| value as u8),
        _ => write_as::<f32>(tensor, values),
    }
}

fn read_as<T: Float>(tensor: &Tensor) -> Vec<f32> {
    converted(tensor, T::to_f32)
}

fn write_as<T: Float>(tensor: &Tensor, values: impl Iterator<Item = f32>) {
    overwrite(tensor, values, T::from_f32);
}

/// The elements of a tensor of type `T`, each as f32.
fn converted<T: Element>(tensor: &Tensor, convert: impl Fn(T) -> f32) -> Vec<f32> {
    let (address, elements) = (tensor.address, tensor.elements());
    if elements == 0 {
        return Vec::new();
    }
    // SAFETY: the device checked that the tensor has this type and is in live host memory, aligned for its type. This thread
    // owns the device, so nothing writes to it now.
    let values = unsafe { std::slice::from_raw_parts(address as *const T, elements) };
    values.iter().map(|x| convert(*x)).collect()
}

/// Overwrites a tensor of type `T`.
fn overwrite<T: Element>(tensor: &Tensor, values: impl Iterator<Item = f32>, convert: impl Fn(f32) -> T) {
    let (address, elements) = (tensor.address, tensor.elements());
    if elements == 0 {
        return;
    }
    // SAFETY: as in `converted`, and no other slice of this memory exists.
    let out = unsafe { std::slice::from_raw_parts_mut(address as *mut T, elements) };
    out.iter_mut().zip(values).for_each(|(out, x)| *out = convert(x));
}
