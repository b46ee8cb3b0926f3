//! For generating text: attention over a cache of keys and values, and rows at a position that lies in device memory.

pub(super) mod host;

use crate::cuda::{
    Grid, KernelFile, KernelOperation, LoadWidth, Queue, THREADS, args, fill, kernel_file, kernel_struct, over_rows,
};
use crate::ops::{
    Mask, Operation, Scores, ensure, ensure_elements, ensure_float, ensure_heads, ensure_shape, ensure_values, tensors,
};
use crate::{DType, Error, Result, Tensor};

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
            ensure_values(Self::NAME, "sinks", sinks, DType::F32, heads)?;
        }
        ensure_values(Self::NAME, "start", &self.start, DType::I32, 1)
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
        ensure_values(Self::NAME, "start", &self.start, DType::I32, 1)
    }

    tensors! { read table, start; write output }
}

kernel_struct! {
    /// `CachedAttention` of `kernels/attention/cache.cu`.
    CachedAttentionArguments {
        u64: qkv, cache, start, output, sinks;
        u32: rows, capacity, heads, kv_heads, dim;
        f32: scale;
        u32: window;
        f32: soft_cap;
    }
}

impl KernelOperation for TakeRows {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/cache.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, dtype) = (self.output.shape.sizes()[0], self.output.dtype);
        let width = self.output.elements() / rows.max(1);
        let load = LoadWidth::of(width, [self.table, self.output]);
        let grid = over_rows(rows, width / load.values(dtype), queue);
        let arguments = args! { self.table, self.start, self.output; U32: rows, width, self.table.shape.sizes()[0] };
        queue.launch(&load.kernel("take_rows", dtype), grid, arguments)
    }
}

impl KernelOperation for CachedAttention {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/cache.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ((batch, rows, dim), dtype) = (self.sizes(), self.qkv.dtype);
        if batch * rows * dim == 0 {
            return Ok(());
        }
        let widths = [64, 128, 256];
        let Some(padded) = widths.into_iter().find(|width| dim <= *width) else {
            let problem = format!("heads of {dim} channels; on CUDA at most 256");
            return Err(Error::operation("cached_attention", format!("{problem}. Fix: --device host")));
        };
        append(self, queue)?;
        let grid = Grid::plane(batch * rows, self.heads, THREADS);
        let arguments = fill! {
            CachedAttentionArguments: self.{qkv, cache, start, output, sinks, heads, kv_heads}; rows,
            capacity: self.capacity(), dim, scale: self.scores.scale(dim), window: self.mask.window_or_all(),
            soft_cap: self.scores.soft_cap.unwrap_or(0.0)
        };
        queue.launch_block(&format!("cached_attention_{dtype}_{padded}"), grid, &arguments)
    }
}

/// Writes the new keys and values to the cache.
fn append(op: &CachedAttention, queue: &Queue<'_>) -> Result<()> {
    let ((batch, rows, dim), dtype) = (op.sizes(), op.qkv.dtype);
    let (queries, width) = (op.heads * dim, op.cache.shape.last());
    // A row holds queries, then keys and values. Vectors need both parts to be whole numbers of them.
    let whole = |columns: usize| LoadWidth::of(columns, [op.qkv, op.cache] as [Tensor; 2]);
    let load = if whole(queries) == LoadWidth::Vector { whole(width) } else { LoadWidth::Scalar };
    let grid = over_rows(batch * rows, width / load.values(dtype), queue);
    let arguments = args! { op.qkv, op.cache, op.start; U32: batch * rows, rows, queries, width, op.capacity() };
    queue.launch(&load.kernel("append_cache", dtype), grid, arguments)
}
