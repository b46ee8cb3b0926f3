//! The last layers: hidden states to losses.

use device::ops::{
    Collective, CollectiveKind, CrossEntropy, CrossEntropyJoin, CrossEntropyPart, Epilogue, Gemm, Mse, SumInto,
    VocabPart,
};
use device::{DType, Tensor};
use graph_manager::{Layer, Mode, Result, StepContext};

use super::block::{NormLayer, SavedNorm, Share};
use super::{Hidden, StepTensors};
use crate::params::Param;

/// Final norm, logits and cross-entropy. The loss is fused with its gradient: forward leaves the logits' gradient where
/// the logits were.
pub(crate) struct LanguageHead {
    pub(crate) norm: NormLayer,
    /// `(padded vocab, hidden)`, or this rank's rows of it; the embedding's table when tied.
    pub(crate) table: Param,
    /// The vocabulary, and which of it the table has.
    pub(crate) vocab: VocabPart,
    pub(crate) share: Share,
    pub(crate) step: StepTensors,
}

#[derive(Clone, Copy)]
struct Saved {
    norm: SavedNorm,
    normed: Tensor,
    grad_logits: Tensor,
}

impl Layer<Hidden> for LanguageHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let rows = input.targets.elements();
        let (_, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let all_normed = self.share.all_rows(cx, "all_normed", normed)?;
        let logits = cx.tensor("logits", [rows, self.table.weight.shape.rows()], input.x.dtype)?;
        cx.run(Gemm::linear(all_normed, self.table.weight, logits, Epilogue::None))?;
        let losses = cx.tensor("losses", [rows], DType::F32)?;
        self.losses(cx, logits, input.targets, losses)?;
        cx.run(SumInto { input: losses, total: self.step.loss_sum, accumulate: true })?;
        cx.keep(Saved { norm, normed, grad_logits: logits });
        Ok(Hidden { x: losses, delta: None, ..input })
    }

    /// `grad` is the losses: their own gradient is `grad_scale`, which forward used.
    fn backward(&self, cx: &mut StepContext<'_>, _grad: Tensor) -> Result<Tensor> {
        let saved: Saved = cx.kept();
        let normed = self.share.all_rows(cx, "all_normed_again", saved.normed)?;
        let grad_normed = cx.tensor("grad_normed", normed.shape, normed.dtype)?;
        cx.run(Gemm::dgrad(saved.grad_logits, self.table.weight, grad_normed, Epilogue::None))?;
        cx.run(Gemm::wgrad(saved.grad_logits, normed, self.table.grad, cx.accumulate()))?;
        let grad_normed = self.share.parallel.sum(cx, "grad_normed_here", grad_normed)?;
        self.norm.backward(cx, &saved.norm, grad_normed, None)
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

impl Layer<Hidden> for RegressionHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let losses = cx.tensor("losses", [input.x.shape.rows()], DType::F32)?;
        let mut grad = None;
        if cx.mode() == Mode::Train {
            let tensor = cx.tensor("grad_prediction", input.x.shape, input.x.dtype)?;
            cx.keep(tensor);
            grad = Some((tensor, self.step.control));
        }
        cx.run(Mse { prediction: input.x, target: input.targets, losses, grad })?;
        cx.run(SumInto { input: losses, total: self.step.loss_sum, accumulate: true })?;
        Ok(Hidden { x: losses, ..input })
    }

    fn backward(&self, cx: &mut StepContext<'_>, _grad: Tensor) -> Result<Tensor> {
        Ok(cx.kept())
    }
}
