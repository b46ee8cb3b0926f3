//! Sums over parts of the keys of attention.

use crate::cuda::kernels::{Arg, Grid, KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{THREADS, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{AddRows, Corner, MergeAttention};
use crate::{Result, Tensor};

/// Values of a thread, and the end of the kernel's name: several if all sizes are multiples and all addresses of 16.
fn values<'t>(sizes: &[usize], tensors: impl IntoIterator<Item = &'t Tensor>) -> (usize, &'static str) {
    let aligned = tensors.into_iter().all(|tensor| tensor.address.is_multiple_of(16));
    if aligned && sizes.iter().all(|size| size.is_multiple_of(4)) { (4, "") } else { (1, "_scalar") }
}

impl KernelOperation for MergeAttention {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/attention_parts.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let &[batch, heads, seq] = self.merged.stats.shape.sizes() else { return Ok(()) };
        let dim = self.merged.output.shape.last() / heads;
        let outputs = [self.first.output, self.second.output, self.merged.output];
        let (_, suffix) = values(&[dim], &outputs);
        let [first, second, merged] = outputs.map(|output| output.dtype);
        let blocks = (batch * seq * heads).div_ceil(THREADS / 32).min(queue.multiprocessors() * 8);
        queue.launch(
            &format!("merge_attention_{first}_{second}_{merged}{suffix}"),
            Grid::line(blocks, THREADS as u32),
            args! {
                self.first.output, self.first.stats, self.second.output, self.second.stats, self.merged.output,
                self.merged.stats; U64: batch * seq; U32: seq, heads, dim, self.first_query
            },
        )
    }
}

impl KernelOperation for AddRows {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/attention_parts.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let corners: Vec<Corner> = self.a.into_iter().chain([self.b, self.to]).collect();
        let sizes = corners.iter().flat_map(|corner| [corner.matrix.shape.last(), corner.column]);
        let sizes: Vec<usize> = sizes.chain([self.columns]).collect();
        let (values, suffix) = values(&sizes, corners.iter().map(|corner| &corner.matrix));
        let start = |Corner { matrix, row, column }: &Corner| {
            let first = row * matrix.shape.last() + column;
            [Arg::Pointer(matrix.address + (first * matrix.dtype.size()) as u64), Arg::U64(matrix.shape.last() as u64)]
        };
        let [a, a_width] = self.a.as_ref().map_or([Arg::Pointer(0), Arg::U64(0)], start);
        let ([b, b_width], [to, to_width]) = (start(&self.b), start(&self.to));
        let numbers = [self.rows, self.tokens, self.columns, self.added.start, self.added.end];
        let arguments = [a, a_width, b, b_width, to, to_width].into_iter();
        let arguments: Vec<Arg> = arguments.chain(numbers.map(|number| Arg::U32(number as u32))).collect();
        queue.launch(
            &format!("add_rows_{}_{}{suffix}", self.to.matrix.dtype, self.b.matrix.dtype),
            over_rows(self.rows, self.columns / values, queue),
            &arguments,
        )
    }
}
