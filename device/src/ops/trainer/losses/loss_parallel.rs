//! Cross-entropy over a vocabulary that is split across ranks. No rank ever has a whole row of logits. Each rank
//! reduces its own columns to three numbers per row. These are gathered, and from them each rank computes the loss and
//! the gradient of its columns.

mod host;

use super::loss::{ZLoss, check_weights};
use crate::cuda::{Grid, KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file};
use crate::ops::{
    Accesses, Operation, check_cap, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_values, tensors,
};
use crate::{DType, Result, Tensor};

/// A rank's columns of the logits of a whole vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabPart {
    /// The token of the first column here.
    pub first_token: usize,
    /// Tokens of the whole vocabulary; later columns are padding.
    pub vocab: usize,
}

impl VocabPart {
    /// How many of this rank's `columns` are no padding.
    pub fn real(&self, columns: usize) -> usize {
        self.vocab.saturating_sub(self.first_token).min(columns)
    }
}

/// The first half, of logits after the `soft_cap`: `stats[0, i]` is the largest of `logits[i]`, `stats[1, i]` the sum of
/// `exp(logits[i] - stats[0, i])`, and `stats[2, i]` the target's logit if it is one of these columns, else 0. Padding
/// does not count. Without any real column the largest is the lowest finite f32.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyPart {
    /// `(rows, columns)`, f32 or bf16.
    pub logits: Tensor,
    /// `(rows)`, i32, tokens of the whole vocabulary.
    pub targets: Tensor,
    /// `(3, rows)`, f32, written.
    pub stats: Tensor,
    /// This rank's columns.
    pub part: VocabPart,
    /// As in [`CrossEntropy`](crate::ops::CrossEntropy).
    pub soft_cap: Option<f32>,
}

/// The second half: losses from the `stats` of all ranks' [`CrossEntropyPart`]. With `control`, `logits` is overwritten
/// by its gradient. [`crate::ops::CrossEntropy`] defines both.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyJoin {
    /// `(rows, columns)`, f32 or bf16; overwritten by the gradient with `control`.
    pub logits: Tensor,
    /// `(rows)`, i32, tokens of the whole vocabulary.
    pub targets: Tensor,
    /// `(ranks, 3, rows)`, f32.
    pub stats: Tensor,
    /// `(rows)`, f32, written; the same on every rank.
    pub losses: Tensor,
    /// This rank's columns.
    pub part: VocabPart,
    /// The bound of the first half.
    pub soft_cap: Option<f32>,
    /// The z-loss, if there is one; the same on every rank.
    pub z_loss: Option<ZLoss>,
    /// As in [`CrossEntropy`](crate::ops::CrossEntropy).
    pub weights: Option<Tensor>,
    /// u8, a [`crate::ops::Control`]; absent in evaluation.
    pub control: Option<Tensor>,
}

fn check_rows(op: &'static str, logits: &Tensor, targets: &Tensor, stats: &Tensor) -> Result<()> {
    let rows = logits.shape.rows();
    ensure_float(op, &[("logits", *logits)])?;
    ensure_values(op, "targets", targets, DType::I32, rows)?;
    ensure_dtype(op, "stats", stats, DType::F32)
}

impl Operation for CrossEntropyPart {
    const NAME: &'static str = "cross_entropy_part";

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.logits, &self.targets, &self.stats)?;
        check_cap(Self::NAME, self.soft_cap)?;
        ensure_elements(Self::NAME, "stats", &self.stats, 3 * self.logits.shape.rows())
    }

    tensors! { read logits, targets; write stats }
}

impl Operation for CrossEntropyJoin {
    const NAME: &'static str = "cross_entropy_join";

    fn check(&self) -> Result<()> {
        let rows = self.logits.shape.rows();
        check_rows(Self::NAME, &self.logits, &self.targets, &self.stats)?;
        ensure(Self::NAME, self.stats.elements().is_multiple_of(3 * rows.max(1)), || {
            format!("`stats` is {:?}, needs (ranks, 3, {rows})", self.stats.shape)
        })?;
        ensure_values(Self::NAME, "losses", &self.losses, DType::F32, rows)?;
        check_cap(Self::NAME, self.soft_cap)?;
        check_weights(Self::NAME, self.weights, rows)?;
        ZLoss::check(self.z_loss, Self::NAME, rows)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.targets, self.stats], [self.losses])
            .reads(self.control)
            .reads(self.weights)
            .reads(self.control.map(|_| self.logits))
            .writes(self.control.map(|_| self.logits))
            .writes(self.z_loss.map(|z_loss| z_loss.losses))
    }

    tensors! { logits, targets, stats, losses, z_loss, weights, control }
}

/// The grid of a block per row, of at least two warps: the kernels rely on barriers.
fn grid(rows: usize, packs: usize) -> Grid {
    Grid::line(rows, packs.next_multiple_of(32).clamp(64, 512))
}

impl KernelOperation for CrossEntropyPart {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        queue.launch(&load.kernel("cross_entropy_part", dtype), grid(rows, columns / load.values(dtype)), args! {
            self.logits, self.targets, self.stats; U32: rows, columns, self.part.real(columns), self.part.first_token;
            F32: self.soft_cap.unwrap_or(0.0)
        })
    }
}

impl KernelOperation for CrossEntropyJoin {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        let ranks = self.stats.elements() / (3 * rows).max(1);
        let arguments = args! {
            self.logits, self.targets, self.stats, self.losses, self.control, self.weights,
            self.z_loss.map(|z_loss| z_loss.losses); F32: self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier);
            U32: rows, columns, self.part.real(columns), self.part.first_token, self.part.vocab, ranks;
            F32: self.soft_cap.unwrap_or(0.0)
        };
        queue.launch(&load.kernel("cross_entropy_join", dtype), grid(rows, columns / load.values(dtype)), arguments)
    }
}
