//! The last layers: hidden states to losses.

use device::ops::{
    Collective, CollectiveKind, CrossEntropy, CrossEntropyJoin, CrossEntropyPart, Epilogue, Gemm, Mse, SumInto,
    VocabPart,
};
use device::{DType, Tensor};
use graph_manager::Result;

use super::norm::{NormLayer, SavedNorm};
use super::tensor_parallel::Share;
use super::{Hidden, Layer, StepTensors};
use crate::params::Param;
use crate::regions::Mode;
use crate::step_policy::StepContext;

/// Final norm, logits and cross-entropy, a piece of the rows at a time. In training forward takes each piece's gradient
/// back through the table at once, so that no more than a piece of the logits is ever in memory.
pub(crate) struct LanguageHead {
    pub(crate) norm: NormLayer,
    /// `(padded vocab, hidden)`, or this rank's rows of it; the embedding's table when tied.
    pub(crate) table: Param,
    /// The vocabulary, and which of it the table has.
    pub(crate) vocab: VocabPart,
    /// Pieces that the rows are cut into; divides them.
    pub(crate) pieces: usize,
    pub(crate) share: Share,
    pub(crate) step: StepTensors,
}

#[derive(Clone, Copy)]
struct Saved {
    norm: SavedNorm,
    /// As `normed`, of all rows; with a vocabulary shared by ranks, this rank's part of a sum.
    grad_normed: Tensor,
}

impl Layer for LanguageHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let (_, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let normed = self.share.all_rows(cx, "all_normed", normed)?;
        let targets = input.wanted();
        let (rows, hidden, dtype) = (targets.elements(), normed.shape.last(), normed.dtype);
        let train = cx.mode() == Mode::Train;
        let losses = cx.tensor("losses", [rows], DType::F32)?;
        let grad_normed = if train { Some(cx.tensor("grad_normed", normed.shape, dtype)?) } else { None };
        let piece = rows / self.pieces;
        let logits = cx.tensor("logits", [piece, self.table.weight.shape.rows()], dtype)?;
        for first in (0..rows).step_by(piece) {
            let part = |tensor: Tensor| tensor.view(first * hidden, [piece, hidden]);
            cx.run(Gemm::linear(part(normed), self.table.weight, logits, Epilogue::None))?;
            self.losses(cx, logits, targets.view(first, [piece]), losses.view(first, [piece]))?;
            if let Some(grad_normed) = grad_normed {
                // The logits' gradient lies where the logits were.
                cx.run(Gemm::dgrad(logits, self.table.weight, part(grad_normed), Epilogue::None))?;
                cx.run(Gemm::wgrad(logits, part(normed), self.table.grad, !cx.variant().overwrites || first > 0))?;
            }
        }
        cx.run(SumInto { input: losses, total: self.step.loss_sum, accumulate: true })?;
        if let Some(grad_normed) = grad_normed {
            cx.save_for_backward(Saved { norm, grad_normed })?;
        }
        Ok(Hidden { x: losses, delta: None, ..input })
    }

    /// `grad` is the losses: their own gradient is `grad_scale`, which forward used.
    fn backward(&self, cx: &mut StepContext<'_>, _grad: Tensor) -> Result<Tensor> {
        let saved: Saved = cx.saved()?;
        let grad_normed = self.share.parallel.sum(cx, "grad_normed_here", saved.grad_normed)?;
        self.norm.backward(cx, &saved.norm, grad_normed, None, None)
    }
}

impl LanguageHead {
    /// Losses, and in training the logits' gradient in their place. Ranks that share the vocabulary exchange three numbers a
    /// row, never logits.
    fn losses(&self, cx: &mut StepContext<'_>, logits: Tensor, targets: Tensor, losses: Tensor) -> Result<()> {
        let control = (cx.mode() == Mode::Train).then_some(self.step.control);
        let parallel = &self.share.parallel;
        let Some(group) = &parallel.group else {
            return cx.run(CrossEntropy { logits, targets, losses, vocab: self.vocab.vocab, control });
        };
        let rows = logits.shape.rows();
        let mine = cx.tensor("stats", [3, rows], DType::F32)?;
        let stats = cx.tensor("all_stats", [parallel.size(), 3, rows], DType::F32)?;
        let part = self.vocab;
        cx.run(CrossEntropyPart { logits, targets, stats: mine, part })?;
        let kind = CollectiveKind::AllGather;
        cx.run(Collective { kind, communicator: group.clone(), input: mine, output: stats })?;
        cx.run(CrossEntropyJoin { logits, targets, stats, losses, part, control })
    }
}

/// Mean squared error against the targets.
pub(crate) struct RegressionHead {
    pub(crate) step: StepTensors,
}

impl Layer for RegressionHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let losses = cx.tensor("losses", [input.x.shape.rows()], DType::F32)?;
        let mut grad = None;
        if cx.mode() == Mode::Train {
            let tensor = cx.tensor("grad_prediction", input.x.shape, input.x.dtype)?;
            cx.save_for_backward(tensor)?;
            grad = Some((tensor, self.step.control));
        }
        cx.run(Mse { prediction: input.x, target: input.wanted(), losses, grad })?;
        cx.run(SumInto { input: losses, total: self.step.loss_sum, accumulate: true })?;
        Ok(Hidden { x: losses, ..input })
    }

    fn backward(&self, cx: &mut StepContext<'_>, _grad: Tensor) -> Result<Tensor> {
        cx.saved()
    }
}
