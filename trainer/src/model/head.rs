//! The last layers: hidden states to losses.

use device::ops::{CrossEntropy, Epilogue, Gemm, Mse, SumInto};
use device::{DType, Tensor};
use graph_manager::{Layer, Mode, Result, StepContext};

use super::block::{NormLayer, SavedNorm};
use super::{Hidden, StepTensors};
use crate::params::Param;

/// Final norm, logits and cross-entropy. The loss is fused with its gradient: forward leaves the logits' gradient where
/// the logits were.
pub(crate) struct LanguageHead {
    pub(crate) norm: NormLayer,
    /// `(padded vocab, hidden)`; the embedding's table when tied.
    pub(crate) table: Param,
    pub(crate) vocab: usize,
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
        let rows = input.x.shape.rows();
        let (_, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let logits = cx.tensor("logits", [rows, self.table.weight.shape.rows()], input.x.dtype)?;
        cx.run(Gemm::linear(normed, self.table.weight, logits, Epilogue::None))?;
        let losses = cx.tensor("losses", [rows], DType::F32)?;
        let control = (cx.mode() == Mode::Train).then_some(self.step.control);
        cx.run(CrossEntropy { logits, targets: input.targets, losses, vocab: self.vocab, control })?;
        cx.run(SumInto { input: losses, total: self.step.loss_sum, accumulate: true })?;
        cx.keep(Saved { norm, normed, grad_logits: logits });
        Ok(Hidden { x: losses, delta: None, ..input })
    }

    /// `grad` is the losses: their own gradient is `grad_scale`, which forward used.
    fn backward(&self, cx: &mut StepContext<'_>, _grad: Tensor) -> Result<Tensor> {
        let saved: Saved = cx.kept();
        let grad_normed = cx.tensor("grad_normed", saved.normed.shape, saved.normed.dtype)?;
        cx.run(Gemm::dgrad(saved.grad_logits, self.table.weight, grad_normed, Epilogue::None))?;
        cx.run(Gemm::wgrad(saved.grad_logits, saved.normed, self.table.grad, cx.accumulate()))?;
        self.norm.backward(cx, &saved.norm, grad_normed, None, None)
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
