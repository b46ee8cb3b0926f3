//! For generating text: attention over a cache of keys and values, and rows at a position that lies in device memory.

use crate::ops::{
    Mask, Operation, Scores, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_heads, ensure_shape, tensors,
};
use crate::{DType, Result, Tensor};

/// Causal attention of new tokens over themselves and over all earlier tokens. A cache holds the keys and values of
/// these.
///
/// First the keys and values of `qkv` are written to rows `start .. start + rows` of `cache`. Then query `i` attends to
/// rows `0 ..= start + i` as far as `mask` lets it see them, as [`Attention`](crate::ops::Attention) would over the whole sequence.
/// Later rows are never read.
/// The position lies in device memory, so that one graph serves every token. A `start` outside of `0 ..= capacity -
/// rows` is a mistake of the caller and is clamped to that range.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedAttention {
    /// `(batch, rows, (heads + 2 kv_heads) * head_dim)`: rows of `[query heads | key heads | value heads]`.
    pub qkv: Tensor,
    /// `(batch, capacity, 2 * kv_heads * head_dim)`, updated: rows of `[key heads | value heads]`.
    pub cache: Tensor,
    /// `(1)`, i32: the position of the first new token.
    pub start: Tensor,
    /// `(batch, rows, heads * head_dim)`.
    pub output: Tensor,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// How scores follow from products.
    pub scores: Scores,
    /// The keys that a query sees.
    pub mask: Mask,
    /// `(heads)`, f32: a score of each head that takes part in the softmax and has no value; `None` for none. See
    /// [`AddSinks`](crate::ops::AddSinks).
    pub sinks: Option<Tensor>,
}

impl CachedAttention {
    /// `(batch, rows, head_dim)`.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let sizes = self.qkv.shape.sizes();
        (sizes[0], sizes[1], sizes[2] / (self.heads + 2 * self.kv_heads))
    }

    /// Rows of the cache.
    pub(crate) fn capacity(&self) -> usize {
        self.cache.shape.sizes()[1]
    }
}

impl Operation for CachedAttention {
    const NAME: &'static str = "cached_attention";

    fn check(&self) -> Result<()> {
        self.scores.check(Self::NAME)?;
        self.mask.check(Self::NAME)?;
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        ensure_heads(Self::NAME, heads, kv_heads)?;
        let sizes = self.qkv.shape.sizes();
        let groups = heads + 2 * kv_heads;
        ensure(Self::NAME, sizes.len() == 3 && sizes[2].is_multiple_of(groups), || {
            format!("`qkv` is {:?}, needs (batch, rows, {groups} * head_dim)", self.qkv.shape)
        })?;
        let (batch, rows, head_dim) = self.sizes();
        ensure_float(Self::NAME, &[("qkv", self.qkv), ("cache", self.cache), ("output", self.output)])?;
        ensure_elements(Self::NAME, "output", &self.output, batch * rows * heads * head_dim)?;
        let cache = self.cache.shape.sizes();
        ensure(
            Self::NAME,
            cache.len() == 3 && cache[0] == batch && cache[1] >= rows && cache[2] == 2 * kv_heads * head_dim,
            || {
                let width = 2 * kv_heads * head_dim;
                format!("`cache` is {:?}, needs ({batch}, {rows} or more, {width})", self.cache.shape)
            },
        )?;
        if let Some(sinks) = &self.sinks {
            ensure_dtype(Self::NAME, "sinks", sinks, DType::F32)?;
            ensure_elements(Self::NAME, "sinks", sinks, heads)?;
        }
        ensure_dtype(Self::NAME, "start", &self.start, DType::I32)?;
        ensure_elements(Self::NAME, "start", &self.start, 1)
    }

    tensors! { read qkv; update cache; read start; write output; read sinks }
}

/// `output = table[start .. start + rows]`, with `start` in device memory. A `start` that would leave the table is a
/// mistake of the caller and is clamped.
#[derive(Clone, Debug, PartialEq)]
pub struct TakeRows {
    /// `(rows or more, ...)`.
    pub table: Tensor,
    /// `(1)`, i32: the first row to take.
    pub start: Tensor,
    /// `(rows, ...)`, of the table's type.
    pub output: Tensor,
}

impl Operation for TakeRows {
    const NAME: &'static str = "take_rows";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("table", self.table), ("output", self.output)])?;
        let (table, output) = (self.table.shape.sizes(), self.output.shape.sizes());
        ensure(Self::NAME, !table.is_empty() && !output.is_empty() && table[0] >= output[0], || {
            format!("`output` is {:?}, more rows than `table` of {:?}", self.output.shape, self.table.shape)
        })?;
        ensure_shape(Self::NAME, "output", &self.output, &[&output[..1], &table[1..]].concat())?;
        ensure_dtype(Self::NAME, "start", &self.start, DType::I32)?;
        ensure_elements(Self::NAME, "start", &self.start, 1)
    }

    tensors! { read table, start; write output }
}
