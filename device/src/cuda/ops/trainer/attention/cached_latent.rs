//! Attention over a cache of latents.

use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::shape::{THREADS, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CachedLatentAttention, CachedLatentSizes};
use crate::{Error, Result};

kernel_struct! {
    /// `CachedLatent` of `kernels/attention/cached_latent.cu`.
    CachedLatentArguments {
        u64: queries, latents, rotated, table, weight, cache, start, output;
        u32: rows, capacity, heads, rank, plain, turned, value, query_columns, rotated_columns, all_rows, window;
        f32: scale, soft_cap;
        u32: reserved;
    }
}

impl KernelOperation for CachedLatentAttention {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/cached_latent.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let CachedLatentSizes { batch, rows, heads, rank, capacity } = self.sizes();
        if batch * rows * heads == 0 {
            return Ok(());
        }
        let (width, dtype) = (rank + self.head.rotated, self.cache.dtype);
        // As many as the kernel keeps in registers; the last is DeepSeek's.
        let widths = [64, 320, Self::WIDEST_ON_GPUS];
        let Some(padded) = widths.into_iter().find(|known| width <= *known) else {
            let problem = format!("{width} channels of a token in the cache of latents; on CUDA at most 576");
            return Err(Error::operation("cached_latent_attention", format!("{problem}. Fix: --device host")));
        };
        let arguments = CachedLatentArguments {
            queries: self.queries.address,
            latents: self.latents.address,
            rotated: self.rotated.address,
            table: self.table.address,
            weight: self.weight.address,
            cache: self.cache.address,
            start: self.start.address,
            output: self.output.address,
            rows: rows as u32,
            capacity: capacity as u32,
            heads: heads as u32,
            rank: rank as u32,
            plain: self.head.plain as u32,
            turned: self.head.rotated as u32,
            value: self.head.value as u32,
            query_columns: self.queries.shape.last() as u32,
            rotated_columns: self.rotated.shape.last() as u32,
            all_rows: (batch * rows) as u32,
            window: self.mask.window_or_all(),
            scale: self.scores.scale(self.head.query()),
            soft_cap: self.scores.soft_cap.unwrap_or(0.0),
            reserved: 0,
        };
        queue.launch_block(&format!("append_latents_{dtype}"), over_rows(batch * rows, width, queue), &arguments)?;
        let grid = Grid { blocks: ((batch * rows) as u32, heads as u32, 1), threads: THREADS as u32, shared: 0 };
        queue.launch_block(&format!("cached_latent_attention_{dtype}_{padded}"), grid, &arguments)
    }
}
