//! Tensors in host memory as f32 values, for communicators of the host device.
#![allow(unsafe_code)]

use device::{DType, Float, Tensor, bf16};

/// The values of a tensor of f32 or bf16, widened.
pub(crate) fn read(tensor: &Tensor) -> Vec<f32> {
    let (address, elements) = (tensor.address, tensor.elements());
    if elements == 0 {
        return Vec::new();
    }
    // SAFETY: the device checked that the tensor is of a floating type and lies in live host memory, aligned for its
    // type; the thread that owns the device is this one, so nothing writes meanwhile.
    unsafe {
        match tensor.dtype {
            DType::Bf16 => {
                std::slice::from_raw_parts(address as *const bf16, elements).iter().map(|x| x.to_f32()).collect()
            }
            _ => std::slice::from_raw_parts(address as *const f32, elements).to_vec(),
        }
    }
}

/// Overwrites a tensor of f32 or bf16, rounding once. Values beyond its elements are passed over.
pub(crate) fn write(tensor: &Tensor, values: impl Iterator<Item = f32>) {
    let (address, elements) = (tensor.address, tensor.elements());
    if elements == 0 {
        return;
    }
    // SAFETY: as in `read`; no other slice of this memory is held.
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
