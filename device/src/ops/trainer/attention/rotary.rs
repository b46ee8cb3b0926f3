//! Rotary position embedding.

mod host;

use crate::cuda::{KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_rows};
use crate::ops::{Operation, ensure, ensure_dtype, ensure_float, ensure_shape, tensors};
use crate::{DType, Result, Tensor};

/// Rotates queries and keys of a packed QKV tensor in place (Su et al., 2021), in the half-split form of GPT-NeoX and
/// Llama: channel `i` pairs with `i + head_dim / 2`.
///
/// Each row of `qkv` holds `[query heads | key heads | value heads]`; values are left alone. The inverse rotation is
/// the backward.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// `(batch, seq, (heads + 2 kv_heads) * head_dim)`, updated in place.
    pub qkv: Tensor,
    /// `(seq, head_dim / 2, 2)`, f32: cosine and sine of `position / base^(2 i / head_dim)`.
    pub table: Tensor,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Rotate back: the gradient.
    pub inverse: bool,
}

impl Operation for Rotary {
    const NAME: &'static str = "rotary";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("qkv", self.qkv)])?;
        ensure_dtype(Self::NAME, "table", &self.table, DType::F32)?;
        let groups = self.heads + 2 * self.kv_heads;
        let sizes = self.qkv.shape.sizes();
        ensure(Self::NAME, sizes.len() == 3 && groups > 0 && sizes[2].is_multiple_of(2 * groups), || {
            format!("`qkv` is {:?}, needs (batch, seq, {groups} * head_dim) with an even head_dim", self.qkv.shape)
        })?;
        ensure_shape(Self::NAME, "table", &self.table, &[sizes[1], sizes[2] / groups / 2, 2])
    }

    tensors! { update qkv; read table }
}

impl KernelOperation for Rotary {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/rotary.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.qkv.shape.rows(), self.qkv.shape.last(), self.qkv.dtype);
        let (seq, rotated) = (self.qkv.shape.sizes()[1], self.heads + self.kv_heads);
        let half = width / (self.heads + 2 * self.kv_heads) / 2;
        let load = LoadWidth::of(half, [self.qkv, self.table]);
        let grid = over_rows(rows, rotated * (half / load.values(dtype)), queue);
        let arguments = args! {
            self.qkv, self.table; U32: rows, seq, width, rotated, half; F32: if self.inverse { -1.0 } else { 1.0 }
        };
        queue.launch(&load.kernel("rotary", dtype), grid, arguments)
    }
}
