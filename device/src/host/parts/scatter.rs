//! Writes matrices of heads.

use crate::host::view;
use crate::{DType, Float, Tensor, bf16};

/// Writes a `(seq, dim)` matrix to columns of a `(seq, width)` one.
pub(crate) fn scatter(tensor: &Tensor, start: usize, width: usize, dim: usize, values: &[f32]) {
    fn rows<T: Float>(tensor: &Tensor, start: usize, width: usize, dim: usize, values: &[f32]) {
        let out = view::write::<T>(tensor);
        for (row, values) in values.chunks(dim).enumerate() {
            let at = start + row * width;
            out[at..at + dim].iter_mut().zip(values).for_each(|(out, x)| *out = T::from_f32(*x));
        }
    }
    match tensor.dtype {
        DType::F32 => rows::<f32>(tensor, start, width, dim, values),
        _ => rows::<bf16>(tensor, start, width, dim, values),
    }
}
