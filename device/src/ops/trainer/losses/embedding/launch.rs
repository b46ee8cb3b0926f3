//! Token and position embedding.

use crate::cuda::{
    Arg, GpuProperties, Grid, KernelFile, KernelOperation, LoadWidth, Queue, THREADS, args, kernel_file, over_rows,
};
use crate::ops::{Embedding, EmbeddingBackward};
use crate::{DType, Result, Tensor};

impl KernelOperation for Embedding {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/embedding.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, seq) = (self.tokens.elements(), self.tokens.shape.last());
        let (hidden, vocab, dtype) = (self.table.shape.last(), self.table.shape.rows(), self.table.dtype);
        let load = LoadWidth::of(hidden, [self.table, self.output].into_iter().chain(self.positions));
        let grid = over_rows(rows, hidden / load.values(dtype), queue);
        let arguments = args! {
            self.tokens, self.table, self.positions, self.position_ids, self.output; U32: rows, seq, hidden, vocab,
            self.first_token; F32: self.scale
        };
        queue.launch(&load.kernel("embedding", dtype), grid, arguments)
    }
}

/// Pairs that a block of the sort handles; `TILE` in `kernels/losses/sort.cu`.
const TILE: usize = 2048;
/// Entries that a block adds up; `CHUNK` in `kernels/losses/embedding_backward.cu`.
const CHUNK: usize = 32;
/// Bytes of an entry: a token and the number of a row.
const ENTRY: usize = 8;

/// The offsets of the parts of scratch, and its size.
struct Scratch {
    /// Pairs before and after a pass of the sort.
    pairs: [usize; 2],
    /// Counts of digits per tile.
    counts: usize,
    /// Lists of unfinished runs, each made from the other in turn, and their rows.
    lists: [usize; 2],
    rows: [usize; 2],
    bytes: usize,
}

/// Entries of the list that is made from a list of `count` entries.
fn next_count(count: usize) -> usize {
    2 * count.div_ceil(CHUNK)
}

impl Scratch {
    fn new(op: &EmbeddingBackward) -> Scratch {
        let (count, hidden) = (op.tokens.elements(), op.grad_output.shape.last());
        let mut bytes = 0;
        let mut part = |size: usize| {
            let start = bytes;
            bytes += size.next_multiple_of(256);
            start
        };
        let pairs = [part(count * ENTRY), part(count * ENTRY)];
        let counts = part(256 * count.div_ceil(TILE) * DType::I32.size());
        let (first, second) = (next_count(count), next_count(next_count(count)));
        let lists = [part(first * ENTRY), part(second * ENTRY)];
        let row = hidden * DType::F32.size();
        let rows = [part(first * row), part(second * row)];
        Scratch { pairs, counts, lists, rows, bytes }
    }
}

impl KernelOperation for EmbeddingBackward {
    const FILES: &'static [KernelFile] =
        &[kernel_file!("losses/embedding_backward.cu"), kernel_file!("losses/sort.cu")];

    /// Tokens are sorted by a stable sort, and runs of equal tokens are added up in fixed
    /// chunks.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.tokens.elements();
        if count == 0 {
            return Ok(());
        }
        if let Some(table) = &self.grad_table {
            table_gradient(self, table, queue)?;
        }
        positions(self, queue)
    }

    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        Scratch::new(self).bytes
    }
}

fn table_gradient(op: &EmbeddingBackward, grad_table: &Tensor, queue: &Queue<'_>) -> Result<()> {
    let count = op.tokens.elements();
    let scratch = Scratch::new(op);
    let at = |part: usize| queue.scratch + part as u64;
    let vocab = grad_table.shape.rows();
    let sorted = sort(op, vocab, &scratch, queue)?;
    let hidden = grad_table.shape.last();
    // First the sorted list with the gradient's rows, then the lists made from it with f32 rows.
    let (mut list, mut rows, mut dtype, mut count) = (sorted, op.grad_output.address, op.grad_output.dtype, count);
    for next in (0..2).cycle() {
        let load = if rows.is_multiple_of(16) { LoadWidth::of(hidden, [*grad_table]) } else { LoadWidth::Scalar };
        let load = if hidden.is_multiple_of(load.values(dtype)) { load } else { LoadWidth::Scalar };
        let chunks = count.div_ceil(CHUNK);
        let packs = hidden / load.values(dtype);
        let parts = packs.div_ceil(THREADS);
        let threads = packs.div_ceil(parts.max(1)).next_multiple_of(32).max(32);
        let arguments = args! {
            Arg::Pointer(list), Arg::Pointer(rows), Arg::Pointer(at(scratch.lists[next])),
            Arg::Pointer(at(scratch.rows[next])), *grad_table; U32: count, hidden, vocab; F32: op.scale
        };
        queue.launch(&load.kernel("add_runs", dtype), Grid::plane(chunks, parts, threads), arguments)?;
        if chunks == 1 {
            break;
        }
        (list, rows, dtype, count) = (at(scratch.lists[next]), at(scratch.rows[next]), DType::F32, next_count(count));
    }
    Ok(())
}

/// Sorts the tokens with their positions and returns the address of the pairs.
fn sort(op: &EmbeddingBackward, vocab: usize, scratch: &Scratch, queue: &Queue<'_>) -> Result<u64> {
    let count = op.tokens.elements();
    let counts = queue.scratch + scratch.counts as u64;
    let [mut from, mut to] = scratch.pairs.map(|part| queue.scratch + part as u64);
    let number = Arg::U32(count as u32);
    let arguments = args! { op.tokens, Arg::Pointer(from), number; U32: vocab, op.first_token };
    queue.launch("sort_begin", Grid::line(count.div_ceil(THREADS), THREADS), arguments)?;
    let tiles = Grid::line(count.div_ceil(TILE), 256);
    // Tokens outside the table have the number `vocab`.
    let bits = usize::BITS - vocab.leading_zeros();
    for shift in (0..bits).step_by(8).map(Arg::U32) {
        queue.launch("sort_count", tiles, args! { Arg::Pointer(from), Arg::Pointer(counts), number, shift })?;
        let digits = Arg::U32((256 * tiles.blocks.0) as u32);
        queue.launch("sort_offsets", Grid::line(1, 1024), args! { Arg::Pointer(counts), digits })?;
        let arguments = [Arg::Pointer(from), Arg::Pointer(to), Arg::Pointer(counts), number, shift];
        queue.launch("sort_move", tiles, &arguments)?;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(from)
}

fn positions(op: &EmbeddingBackward, queue: &Queue<'_>) -> Result<()> {
    let Some(grad_positions) = op.grad_positions else { return Ok(()) };
    let (seq, hidden, dtype) = (op.tokens.shape.last(), op.grad_output.shape.last(), op.grad_output.dtype);
    let load = LoadWidth::of(hidden, [op.grad_output, grad_positions]);
    let grid = over_rows(seq, hidden / load.values(dtype), queue);
    let arguments = args! { op.grad_output, grad_positions; U32: op.tokens.shape.rows(), seq, hidden };
    queue.launch(&load.kernel("add_positions", dtype), grid, arguments)
}
