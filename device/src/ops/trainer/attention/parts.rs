//! Attention of the same queries over several parts of the keys: sums of its outputs and of its gradients.

mod host;

use std::ops::Range;

use crate::cuda::{Arg, Grid, KernelFile, KernelOperation, Queue, THREADS, args, kernel_file, over_rows};
use crate::ops::{Accesses, Corner, HasTensors, Operation, ensure, ensure_dtype, ensure_shape, tensors};
use crate::{DType, Result, Tensor};

/// The results of attention over a part of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// `(batch, seq, heads * head_dim)`, f32 or bf16.
    pub output: Tensor,
    /// `(batch, heads, seq)`, f32: log-sum-exp of each row of scores.
    pub stats: Tensor,
}

impl HasTensors for KeyPart {
    tensors! { output, stats }
}

/// Attention over the keys of two parts, in f32: `l = log(exp(a) + exp(b))` and `exp(a - l) A + exp(b - l) B`, with `a` and `b`
/// the statistics of the parts and `A` and `B` their outputs (as for the blocks of Dao et al., 2022).
#[derive(Clone, Debug, PartialEq)]
pub struct MergeAttention {
    /// Attention over the first keys. Every query sees some of these keys.
    pub first: KeyPart,
    /// Attention over further keys, which the queries of a sample from `first_query` on see. The rows of the others are
    /// not read.
    pub second: KeyPart,
    /// Counted in a sample.
    pub first_query: usize,
    /// Written. A tensor may be the same one of `first`.
    pub merged: KeyPart,
}

/// Fails unless a matrix is f32 or bf16.
fn ensure_values(op: &'static str, name: &str, matrix: &Tensor) -> Result<()> {
    ensure(op, matches!(matrix.dtype, DType::F32 | DType::Bf16), || {
        format!("`{name}` is {}, needs f32 or bf16", matrix.dtype)
    })
}

impl Operation for MergeAttention {
    const NAME: &'static str = "merge_attention";

    fn check(&self) -> Result<()> {
        let [outputs, stats] = [self.first.output.shape, self.first.stats.shape];
        let (&[batch, seq, width], &[of_batch, heads, of_seq]) = (outputs.sizes(), stats.sizes()) else {
            return ensure(Self::NAME, false, || {
                format!("`first` is {outputs:?} and {stats:?}, needs three axes each")
            });
        };
        let fits = (batch, seq) == (of_batch, of_seq) && heads > 0 && width.is_multiple_of(heads);
        ensure(Self::NAME, fits && self.first_query <= seq, || {
            format!("outputs {outputs:?} and stats {stats:?} from query {}", self.first_query)
        })?;
        for (name, part) in [("first", self.first), ("second", self.second), ("merged", self.merged)] {
            ensure_values(Self::NAME, name, &part.output)?;
            ensure_shape(Self::NAME, name, &part.output, outputs.sizes())?;
            ensure_dtype(Self::NAME, name, &part.stats, DType::F32)?;
            ensure_shape(Self::NAME, name, &part.stats, stats.sizes())?;
        }
        let types = [self.first.output, self.merged.output].map(|output| output.dtype);
        let known = types.iter().all(|dtype| [DType::F32, self.second.output.dtype].contains(dtype));
        ensure(Self::NAME, known, || format!("outputs of {types:?}, need f32 or the type of `second`"))
    }

    tensors! { read first, second; write merged }
}

/// `to = a + b` for columns of the rows of samples, in f32. The rest of `to`'s matrix keeps its values.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRows {
    /// f32 or bf16; `None` for zeros.
    pub a: Option<Corner>,
    /// f32 or bf16.
    pub b: Corner,
    /// The rows of a sample to which `b` is added. The others are those of `a`, and `b` is not read there.
    pub added: Range<usize>,
    /// Rows of a sample.
    pub tokens: usize,
    /// Rows of all samples.
    pub rows: usize,
    /// Columns of the part.
    pub columns: usize,
    /// Written, of the type of `a`; may be `a`.
    pub to: Corner,
}

impl Operation for AddRows {
    const NAME: &'static str = "add_rows";

    fn check(&self) -> Result<()> {
        let samples = self.tokens > 0 && self.rows.is_multiple_of(self.tokens) && self.added.end <= self.tokens;
        ensure(Self::NAME, samples, || {
            format!("rows {:?} of samples of {} tokens, of {} rows", self.added, self.tokens, self.rows)
        })?;
        for (name, corner) in [("a", self.a), ("b", Some(self.b)), ("to", Some(self.to))] {
            let Some(Corner { matrix, row, column }) = corner else { continue };
            ensure_values(Self::NAME, name, &matrix)?;
            let fits = row + self.rows <= matrix.shape.rows() && column + self.columns <= matrix.shape.last();
            ensure(Self::NAME, fits, || {
                let (rows, columns) = (self.rows, self.columns);
                format!("`{name}` is {:?}, and has no ({rows}, {columns}) at ({row}, {column})", matrix.shape)
            })?;
        }
        self.a.map_or(Ok(()), |a| ensure_dtype(Self::NAME, "to", &self.to.matrix, a.matrix.dtype))
    }

    fn accesses(&self) -> Accesses {
        let to = self.to.matrix;
        let is_part = self.rows * self.columns < to.elements();
        Accesses::new([self.b.matrix], [to]).reads(self.a.map(|a| a.matrix)).reads(is_part.then_some(to))
    }

    tensors! { a, b, to }
}

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
        let arguments = args! {
            self.first.output, self.first.stats, self.second.output, self.second.stats, self.merged.output,
            self.merged.stats; U64: batch * seq; U32: seq, heads, dim, self.first_query
        };
        let kernel = format!("merge_attention_{first}_{second}_{merged}{suffix}");
        queue.launch(&kernel, Grid::line(blocks, THREADS), arguments)
    }
}

impl KernelOperation for AddRows {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/attention_parts.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let corners: Vec<Corner> = self.a.into_iter().chain([self.b, self.to]).collect();
        let sizes = corners.iter().flat_map(|corner| [corner.matrix.shape.last(), corner.column]);
        let sizes: Vec<usize> = sizes.chain([self.columns]).collect();
        let (values, suffix) = values(&sizes, corners.iter().map(|corner| &corner.matrix));
        let [a, a_width] = self.a.as_ref().map_or([Arg::Pointer(0), Arg::U64(0)], |a| a.args(1));
        let ([b, b_width], [to, to_width]) = (self.b.args(1), self.to.args(1));
        let arguments = args! {
            a, a_width, b, b_width, to, to_width;
            U32: self.rows, self.tokens, self.columns, self.added.start, self.added.end
        };
        let kernel = format!("add_rows_{}_{}{suffix}", self.to.matrix.dtype, self.b.matrix.dtype);
        queue.launch(&kernel, over_rows(self.rows, self.columns / values, queue), arguments)
    }
}
