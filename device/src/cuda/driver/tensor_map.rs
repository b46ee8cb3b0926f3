//! Maps of tensors, by which a GPU copies boxes of them (TMA). Kernels get them as arguments.

#![allow(unsafe_code)]

use std::ffi::c_void;

use cudarc::driver::sys;

use super::Driver;
use crate::{DType, Result, Tensor};

/// A `CUtensorMap`: `TensorMap` of `kernels/headers/hopper.cuh`. It holds the tensor's address, so it is made for each
/// launch.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct TensorMap([u64; 16]);

/// Lines of a box, and the bytes of each.
const BOX: (u32, u32) = (64, 128);

/// `FAR` of `kernels/headers/hopper.cuh`.
const FAR: u64 = 1 << 30;

/// The driver takes no larger dimension where the largest is meant.
const ANY: u64 = 0x7fff_0000;

impl TensorMap {
    /// Of `(rows, columns)`.
    pub(crate) fn matrix(tensor: Tensor, columns: usize) -> Result<TensorMap> {
        let line = (columns * tensor.dtype.size()) as u64;
        TensorMap::new(tensor, &[columns as u64, (tensor.elements() / columns) as u64], &[line])
    }

    /// Of `(matrices, rows, columns)`.
    pub(crate) fn matrices(tensor: Tensor, matrices: usize, columns: usize) -> Result<TensorMap> {
        let (rows, line) = (tensor.elements() / matrices / columns, columns * tensor.dtype.size());
        TensorMap::new(tensor, &[columns as u64, rows as u64, matrices as u64], &[line as u64, (rows * line) as u64])
    }

    /// Of `matrices` in the columns of one: `(rows, matrices * columns)`.
    pub(crate) fn side_by_side(tensor: Tensor, matrices: usize, columns: usize) -> Result<TensorMap> {
        let (rows, bytes) = (tensor.elements() / matrices / columns, columns * tensor.dtype.size());
        TensorMap::new(
            tensor,
            &[columns as u64, rows as u64, matrices as u64],
            &[(matrices * bytes) as u64, bytes as u64],
        )
    }

    /// Of `(rows, columns)`, with the two dimensions more by which a box ends at the end of a segment of rows:
    /// `kernels/headers/hopper.cuh`, "Ragged maps".
    pub(crate) fn ragged(tensor: Tensor, columns: usize) -> Result<TensorMap> {
        let line = (columns * tensor.dtype.size()) as u64;
        TensorMap::new(tensor, &[columns as u64, FAR, ANY, ANY], &[line, line, (1 << 35) - line])
    }

    /// Sizes of dimensions, from the inner one; bytes from an index to the next, of all but the inner one.
    ///
    /// # Errors
    /// An address or a stride that is no multiple of 16, a dimension of no element, as the driver says.
    fn new(tensor: Tensor, sizes: &[u64], strides: &[u64]) -> Result<TensorMap> {
        use sys::CUtensorMapDataType_enum as Type;
        let kind = match tensor.dtype {
            DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            DType::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            _ => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        };
        let mut of_box = vec![1; sizes.len()];
        (of_box[0], of_box[1]) = (BOX.1 / tensor.dtype.size() as u32, BOX.0);
        let ones = vec![1; sizes.len()];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have as many entries as dimensions, but one stride less; the map is written.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                sizes.len() as u32,
                tensor.address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                of_box.as_ptr(),
                ones.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .driver("cuTensorMapEncodeTiled")?;
        Ok(TensorMap(map.opaque))
    }
}
