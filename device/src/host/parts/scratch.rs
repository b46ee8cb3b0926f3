//! Bytes of copies in f32. Matrix products and attention compute in f32: they copy factors of other types.

use crate::{Accesses, DType, Tensor};

/// Bytes of a tensor's copy in f32.
pub(crate) fn in_f32(tensor: &Tensor) -> usize {
    tensor.elements() * 4
}

/// Bytes of the copies of all factors that an operation reads.
pub(crate) fn factors_in_f32(accesses: &Accesses) -> usize {
    let small = accesses.reads.iter().filter(|tensor| tensor.dtype == DType::Bf16 || tensor.dtype.is_fp8());
    small.map(in_f32).sum()
}
