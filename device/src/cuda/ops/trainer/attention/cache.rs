//! Attention over a cache, and rows at a position in device memory.

use crate::cuda::kernels::{Grid, KernelFile, args, kernel_file, kernel_struct};
use crate::cuda::ops::shape::{LoadWidth, THREADS, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CachedAttention, TakeRows};
use crate::{Error, Result, Tensor};

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
        queue.launch(
            &load.kernel("take_rows", dtype),
            grid,
            args! { self.table, self.start, self.output; U32: rows, width, self.table.shape.sizes()[0] },
        )
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
        let grid = Grid { blocks: ((batch * rows) as u32, self.heads as u32, 1), threads: THREADS as u32, shared: 0 };
        let arguments = CachedAttentionArguments {
            qkv: self.qkv.address,
            cache: self.cache.address,
            start: self.start.address,
            output: self.output.address,
            sinks: self.sinks.map_or(0, |sinks| sinks.address),
            rows: rows as u32,
            capacity: self.capacity() as u32,
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            dim: dim as u32,
            scale: self.scores.scale(dim),
            window: self.mask.window_or_all(),
            soft_cap: self.scores.soft_cap.unwrap_or(0.0),
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
    queue.launch(
        &load.kernel("append_cache", dtype),
        grid,
        args! { op.qkv, op.cache, op.start; U32: batch * rows, rows, queries, width, op.capacity() },
    )
}
