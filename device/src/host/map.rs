//! Loops over the elements of tensors.

use crate::host::{Pool, view};
use crate::{Float, Tensor};

/// Elements of one task.
pub(crate) const CHUNK: usize = 1 << 14;

/// Calls `$body` with `$float` standing for the tensor's floating type.
macro_rules! with_float {
    ($dtype:expr, $float:ident => $body:expr) => {
        match $dtype {
            crate::DType::F32 => {
                type $float = f32;
                $body
            }
            _ => {
                type $float = crate::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_float;

/// `output[i] = f(i)`.
#[inline(always)]
pub(crate) fn map<T: Float>(output: &Tensor, pool: &Pool, f: impl Fn(usize) -> f32 + Send + Sync) {
    pool.for_each_chunk(view::write::<T>(output), CHUNK, |chunk, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = T::from_f32(f(chunk * CHUNK + i)));
    });
}

/// `output[i] = f(i, output[i])`.
#[inline(always)]
pub(crate) fn map_in_place<T: Float>(output: &Tensor, pool: &Pool, f: impl Fn(usize, f32) -> f32 + Send + Sync) {
    pool.for_each_chunk(view::write::<T>(output), CHUNK, |chunk, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = T::from_f32(f(chunk * CHUNK + i, out.to_f32())));
    });
}
