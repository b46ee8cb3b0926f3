//! Checks of shapes and types that operations share.

use super::accesses::overlap;
use crate::{DType, Error, Result, Tensor};

/// Fails with `problem` unless `ok`.
pub(crate) fn ensure(op: &'static str, ok: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::operation(op, problem())) }
}

/// Fails unless `tensor` has the given sizes.
pub(crate) fn ensure_shape(op: &'static str, name: &str, tensor: &Tensor, sizes: &[usize]) -> Result<()> {
    ensure(op, tensor.shape.sizes() == sizes, || {
        format!("`{name}` has shape {:?}, needs {:?}", tensor.shape, crate::Shape::new(sizes))
    })
}

/// Fails unless `tensor` has the given number of elements.
pub(crate) fn ensure_elements(op: &'static str, name: &str, tensor: &Tensor, elements: usize) -> Result<()> {
    ensure(op, tensor.elements() == elements, || {
        format!("`{name}` of shape {:?} has {} elements, needs {elements}", tensor.shape, tensor.elements())
    })
}

/// Fails if the output's memory is also that of an input.
pub(crate) fn ensure_apart(op: &'static str, (name, input): (&str, &Tensor), output: &Tensor) -> Result<()> {
    ensure(op, !overlap(input, output), || format!("`output` overlaps with `{name}` in memory"))
}

/// Fails unless `tensor` is of the given type.
pub(crate) fn ensure_dtype(op: &'static str, name: &str, tensor: &Tensor, dtype: DType) -> Result<()> {
    ensure(op, tensor.dtype == dtype, || format!("`{name}` is {}, needs {dtype}", tensor.dtype))
}

/// Fails unless `tensor` has the given number of elements of the given type.
pub(crate) fn ensure_values(
    op: &'static str,
    name: &str,
    tensor: &Tensor,
    dtype: DType,
    elements: usize,
) -> Result<()> {
    ensure_dtype(op, name, tensor, dtype)?;
    ensure_elements(op, name, tensor, elements)
}

/// Fails unless all tensors are of one floating type.
pub(crate) fn ensure_float(op: &'static str, tensors: &[(&str, Tensor)]) -> Result<()> {
    let dtype = tensors[0].1.dtype;
    for (name, tensor) in tensors {
        ensure(op, matches!(tensor.dtype, DType::F32 | DType::Bf16) && tensor.dtype == dtype, || {
            format!("`{name}` is {}, needs {dtype} like `{}`, f32 or bf16", tensor.dtype, tensors[0].0)
        })?;
    }
    Ok(())
}

/// Fails unless each key and value head serves the same number of query heads.
pub(crate) fn ensure_heads(op: &'static str, heads: usize, kv_heads: usize) -> Result<()> {
    ensure(op, heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
        format!("{heads} heads cannot share {kv_heads} key and value heads: the first must be a multiple")
    })
}
