//! For generating text with latent attention: attention over a cache of latents.

mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, Queue, THREADS, fill, kernel_file, kernel_struct, over_rows};
use crate::ops::{
    Accesses, LatentHead, Mask, Operation, Scores, ensure, ensure_elements, ensure_float, ensure_shape, ensure_values,
    tensors,
};
use crate::{DType, Error, Result, Tensor};

/// Causal latent attention of new tokens over themselves and over all earlier tokens, in absorbed form (DeepSeek-V2,
/// 2024, section 2.1.2). A cache holds one vector of each token: its latent, and the rotated channels of its keys. No
/// keys or values of heads are made: a query is multiplied by the matrix that would make its keys of latents, and the sum
/// of latents that it attends to by the one that would make values.
///
/// First the vectors of the new tokens are written to rows `start .. start + rows` of `cache`. Then query `i` attends to
/// rows `0 ..= start + i` as far as `mask` lets it see them. Later rows are never read. A `start` outside of `0 ..=
/// capacity - rows` is a mistake of the caller and is clamped to that range.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedLatentAttention {
    /// The sizes of a head.
    pub head: LatentHead,
    /// `(batch, rows, heads * query or more)`: rows that begin with the queries of heads, before they are turned.
    pub queries: Tensor,
    /// `(batch, rows, rank)`: the latents, after their norm.
    pub latents: Tensor,
    /// `(batch, rows, rotated or more)`: rows that end with the keys' rotated channels, before these are turned. It may be
    /// `queries`.
    pub rotated: Tensor,
    /// `(rows, rotated / 2, 2)`, f32: cosines and sines of the new tokens' positions.
    pub table: Tensor,
    /// `(heads * (plain + value), rank)`: of each head the rows that make the plain channels of its keys of a latent, then
    /// those that make its values.
    pub weight: Tensor,
    /// `(batch, capacity, rank + rotated)`, updated: rows of latents and turned channels.
    pub cache: Tensor,
    /// `(1)`, i32: the position of the first new token.
    pub start: Tensor,
    /// `(batch, rows, heads * value)`.
    pub output: Tensor,
    /// How scores follow from products.
    pub scores: Scores,
    /// The keys that a query sees.
    pub mask: Mask,
}

/// The sizes of checked tensors.
#[derive(Clone, Copy)]
pub(crate) struct CachedLatentSizes {
    pub(crate) batch: usize,
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    pub(crate) rank: usize,
    /// Rows of the cache.
    pub(crate) capacity: usize,
}

impl CachedLatentAttention {
    /// The most channels of a token in the cache on GPUs.
    pub const WIDEST_ON_GPUS: usize = 576;

    pub(crate) fn sizes(&self) -> CachedLatentSizes {
        let (latents, of_head) = (self.latents.shape.sizes(), self.head.plain + self.head.value);
        CachedLatentSizes {
            batch: latents[0],
            rows: latents[1],
            heads: self.weight.shape.rows() / of_head.max(1),
            rank: latents[2],
            capacity: self.cache.shape.sizes()[1],
        }
    }
}

impl Operation for CachedLatentAttention {
    const NAME: &'static str = "cached_latent_attention";

    fn check(&self) -> Result<()> {
        self.scores.check(Self::NAME)?;
        self.mask.check(Self::NAME)?;
        let CachedLatentAttention { head, queries, latents, rotated, table, weight, cache, output, .. } = self;
        ensure_float(
            Self::NAME,
            &[
                ("output", *output),
                ("queries", *queries),
                ("latents", *latents),
                ("rotated", *rotated),
                ("weight", *weight),
                ("cache", *cache),
            ],
        )?;
        ensure(Self::NAME, head.rotated.is_multiple_of(2) && head.value > 0, || {
            format!("{head:?}: an even number rotates, and heads have values")
        })?;
        let of_head = head.plain + head.value;
        ensure(Self::NAME, [latents, cache].iter().all(|tensor| tensor.shape.sizes().len() == 3), || {
            format!("`latents` is {:?} and `cache` {:?}, need three axes", latents.shape, cache.shape)
        })?;
        let CachedLatentSizes { batch, rows, heads, rank, .. } = self.sizes();
        ensure_shape(Self::NAME, "weight", weight, &[heads * of_head, rank])?;
        let held = cache.shape.sizes();
        ensure(Self::NAME, held[0] == batch && held[1] >= rows && held[2] == rank + head.rotated, || {
            let width = rank + head.rotated;
            format!("`cache` is {:?}, needs ({batch}, {rows} or more, {width})", cache.shape)
        })?;
        let fits = |tensor: &Tensor, least: usize| tensor.shape.rows() == batch * rows && tensor.shape.last() >= least;
        ensure(Self::NAME, fits(queries, heads * head.query()) && fits(rotated, head.rotated), || {
            format!(
                "`queries` is {:?} and `rotated` {:?}, of {heads} heads with {head:?}",
                queries.shape, rotated.shape
            )
        })?;
        ensure_elements(Self::NAME, "output", output, batch * rows * heads * head.value)?;
        ensure_values(Self::NAME, "table", table, DType::F32, rows * head.rotated)?;
        ensure_values(Self::NAME, "start", &self.start, DType::I32, 1)
    }

    fn accesses(&self) -> Accesses {
        let other = (self.rotated != self.queries).then_some(self.rotated);
        let read = [self.queries, self.latents, self.table, self.weight, self.start, self.cache];
        Accesses::new(read, [self.cache, self.output]).reads(other)
    }

    tensors! { queries, latents, rotated, table, weight, cache, start, output }
}

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
        let arguments = fill! {
            CachedLatentArguments: self.{queries, latents, rotated, table, weight, cache, start, output}; rows,
            capacity, heads, rank, plain: self.head.plain, turned: self.head.rotated, value: self.head.value,
            query_columns: self.queries.shape.last(), rotated_columns: self.rotated.shape.last(),
            all_rows: batch * rows, window: self.mask.window_or_all(), scale: self.scores.scale(self.head.query()),
            soft_cap: self.scores.soft_cap.unwrap_or(0.0), reserved: 0u32
        };
        queue.launch_block(&format!("append_latents_{dtype}"), over_rows(batch * rows, width, queue), &arguments)?;
        let grid = Grid::plane(batch * rows, heads, THREADS);
        queue.launch_block(&format!("cached_latent_attention_{dtype}_{padded}"), grid, &arguments)
    }
}
