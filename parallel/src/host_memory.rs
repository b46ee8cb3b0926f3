//! Reading and writing tensors in host memory as f32 values.
#![allow(unsafe_code)]

use device::{DType, Float, Tensor, bf16};

/// The values of an f32 or bf16 tensor, widened to f32.
pub(crate) fn read(tensor: &Tensor) -> Vec<f32> {
    let (address, elements) = (tensor.address, tensor.elements());
    if elements == 0 {
        return Vec::new();
    }
    // SAFETY: the device checked that the tensor has a floating type and is in live host memory, aligned for its type.
    // This thread owns the device, so nothing writes to it now.
    unsafe {
        match tensor.dtype {
            DType::Bf16 => {
                std::slice::from_raw_parts(address as *const bf16, elements).iter().map(|x| x.to_f32()).collect()
            }
            _ => std::slice::from_raw_parts(address as *const f32, elements).to_vec(),
        }
    }
}

/// Overwrites an f32 or bf16 tensor, rounding once. Values beyond the tensor's elements are ignored.
pub(crate) fn write(tensor: &Tensor, values: impl Iterator<Item = f32>) {
    let (address, elements) = (tensor.address, tensor.elements());
    if elements == 0 {
        return;
    }
    // SAFETY: as in `read`, and no other slice of this memory exists.
    unsafe {
        match tensor.dtype {
            DType::Bf16 => std::slice::from_raw_parts_mut(address as *mut bf16, elements)
                .iter_mut()
                .zip(values)
                .for_each(|(out, x)| *out = <bf16 as Float>::from_f32(x)),
            _ => std::slice::from_raw_parts_mut(address as *mut f32, elements)
                .iter_mut()
                .zip(values)
                .for_each(|(out, x)| *out = x),
        }
    }
}
