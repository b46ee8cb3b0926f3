//! Losses, each with its gradient in the same pass.

pub(super) mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, LoadWidth, Queue, args, fill, kernel_file, kernel_struct};
use crate::ops::{
    Accesses, HasTensors, Operation, check_cap, ensure, ensure_elements, ensure_float, ensure_values, tensors,
};
use crate::{DType, Result, Tensor};

/// The z-loss of each row, `multiplier * logsumexp(logits[i])^2`. It keeps logits from growing. Its gradient is added
/// to that of the cross-entropy, and it is not part of `losses` there. Rows that have no loss have no z-loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZLoss {
    /// The factor of the squares.
    pub multiplier: f32,
    /// `(rows)`, f32, written.
    pub losses: Tensor,
}

impl HasTensors for ZLoss {
    tensors! { losses }
}

impl ZLoss {
    pub(crate) fn check(z_loss: Option<ZLoss>, op: &'static str, rows: usize) -> Result<()> {
        let Some(ZLoss { losses, .. }) = z_loss else { return Ok(()) };
        ensure_values(op, "z_loss.losses", &losses, DType::F32, rows)
    }
}

/// Fails unless the factors of gradients, if there are some, are one for each row.
pub(super) fn check_weights(op: &'static str, weights: Option<Tensor>, rows: usize) -> Result<()> {
    let Some(weights) = weights else { return Ok(()) };
    ensure_values(op, "weights", &weights, DType::F32, rows)
}

/// Softmax and cross-entropy: `losses[i] = logsumexp(logits[i, ..vocab]) - logits[i, targets[i]]`, in f32.
///
/// With a `soft_cap` the loss is that of `cap * tanh(logit / cap)` (Gemma Team, 2024). These logits are never stored.
///
/// With `control`, `logits` is overwritten by its gradient, `(softmax - onehot) * grad_scale`, with `grad_scale` from the
/// control block, times the row's weight if rows have some. Columns from `vocab` on are padding: their probability and gradient
/// are 0. A row with a negative target has loss and gradient 0. So has a row with a target of `vocab` or more: that is a
/// mistake of the data reader. Logits far from zero cost no precision: the largest one and the logarithm of the sum are never
/// added.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropy {
    /// `(rows, padded vocab)`, f32 or bf16; overwritten by the gradient with `control`.
    pub logits: Tensor,
    /// `(rows)`, i32.
    pub targets: Tensor,
    /// `(rows)`, f32, written.
    pub losses: Tensor,
    /// Columns that are real.
    pub vocab: usize,
    /// The bound of logits, if there is one.
    pub soft_cap: Option<f32>,
    /// The z-loss, if there is one.
    pub z_loss: Option<ZLoss>,
    /// `(rows)`, f32: factors of the rows' gradients.
    pub weights: Option<Tensor>,
    /// u8, a [`crate::ops::Control`]; absent in evaluation.
    pub control: Option<Tensor>,
}

impl Operation for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn check(&self) -> Result<()> {
        let rows = self.logits.shape.rows();
        ensure_float(Self::NAME, &[("logits", self.logits)])?;
        ensure_values(Self::NAME, "targets", &self.targets, DType::I32, rows)?;
        ensure_values(Self::NAME, "losses", &self.losses, DType::F32, rows)?;
        ZLoss::check(self.z_loss, Self::NAME, rows)?;
        check_weights(Self::NAME, self.weights, rows)?;
        check_cap(Self::NAME, self.soft_cap)?;
        ensure(Self::NAME, (1..=self.logits.shape.last()).contains(&self.vocab), || {
            format!("vocab {} is not within the {} columns of `logits`", self.vocab, self.logits.shape.last())
        })
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.logits, self.targets], [self.losses])
            .reads(self.control)
            .reads(self.weights)
            .writes(self.control.map(|_| self.logits))
            .writes(self.z_loss.map(|z_loss| z_loss.losses))
    }

    tensors! { logits, targets, losses, z_loss, weights, control }
}

/// Mean squared error per row: `losses[i] = mean over f of (prediction - target)^2`, in f32.
///
/// With `grad`, `grad_prediction = 2 (prediction - target) / f * grad_scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mse {
    /// `(rows, f)`.
    pub prediction: Tensor,
    /// `(rows, f)`.
    pub target: Tensor,
    /// `(rows)`, f32, written.
    pub losses: Tensor,
    /// `(rows, f)`, written; and u8, the [`crate::ops::Control`] with `grad_scale`.
    pub grad: Option<(Tensor, Tensor)>,
}

impl Operation for Mse {
    const NAME: &'static str = "mse";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("prediction", self.prediction), ("target", self.target)])?;
        ensure_elements(Self::NAME, "target", &self.target, self.prediction.elements())?;
        ensure_values(Self::NAME, "losses", &self.losses, DType::F32, self.prediction.shape.rows())?;
        if let Some((grad, _)) = &self.grad {
            ensure_float(Self::NAME, &[("prediction", self.prediction), ("grad", *grad)])?;
            ensure_elements(Self::NAME, "grad", grad, self.prediction.elements())?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.prediction, self.target], [self.losses])
            .reads(self.grad.map(|(_, control)| control))
            .writes(self.grad.map(|(grad, _)| grad))
    }

    tensors! { prediction, target, losses, grad }
}

/// Shared memory that a loss kernel declares itself, rounded up.
const DECLARED: usize = 1024;

kernel_struct! {
    /// The struct of the same name in `kernels/losses/loss.cu`; 0 is the null pointer.
    CrossEntropyArgs {
        u64: logits, targets, losses, control, z_losses, weights;
        f32: z_multiplier, soft_cap;
        u32: columns, vocab;
    }
}

impl KernelOperation for CrossEntropy {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    /// A row is kept in shared memory if it fits.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        let row_bytes = columns * dtype.size();
        // Without a gradient the row is read only once.
        let fits = row_bytes + DECLARED <= queue.gpu().shared_bytes as usize;
        let cached = self.control.is_some() && fits && load == LoadWidth::Vector;
        let name = if cached { "cross_entropy_cached" } else { "cross_entropy" };
        // At least two warps: the kernel relies on barriers.
        let threads = (columns / load.values(dtype)).next_multiple_of(32).clamp(64, 512);
        let shared = if cached { row_bytes } else { 0 };
        let block = fill! {
            CrossEntropyArgs: self.{logits, targets, losses, control, weights, vocab};
            z_losses: self.z_loss.map(|z_loss| z_loss.losses),
            z_multiplier: self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier), soft_cap: self.soft_cap.unwrap_or(0.0),
            columns
        };
        queue.launch_block(&load.kernel(name, dtype), Grid { shared, ..Grid::line(rows, threads) }, &block)
    }
}

impl KernelOperation for Mse {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.prediction.shape.rows(), self.prediction.shape.last(), self.prediction.dtype);
        let (grad, control) = self.grad.unzip();
        let load = LoadWidth::of(width, [self.prediction, self.target].into_iter().chain(grad));
        let threads = (width / load.values(dtype)).next_multiple_of(32).clamp(32, 256);
        let arguments = args! { self.prediction, self.target, self.losses, grad, control; U32: width };
        queue.launch(&load.kernel("mse", dtype), Grid::line(rows, threads), arguments)
    }
}
