//! The last layers: hidden states to losses.

use device::ops::{
    Collective, CollectiveKind, CrossEntropy, CrossEntropyJoin, CrossEntropyPart, Epilogue, Gemm, Mse, SumInto,
    VocabPart, ZLoss,
};
use device::{DType, Tensor};
use graph_manager::Result;

use super::builder::{LayerBuilder, ShardedShape};
use super::embedding::TOKEN_TABLE;
use super::hidden::Hidden;
use super::layer::LossHead;
use super::loss_term::LossTerm;
use super::norm::{NormLayer, NormSpec, SavedNorm};
use super::norm_sums::NormSums;
use super::saved::Saved;
use super::shape::GptShape;
use super::tensor_parallel::TensorParallel;
use super::token_cost::TokenCost;
use crate::microbatch::adds_to_gradients;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// The matrix of a head that is not tied.
const HEAD_TABLE: &str = "lm_head.weight";

/// See [`ZLoss`].
const Z_LOSS: LossTerm = LossTerm { name: "z_loss" };

fn norm(shape: &GptShape) -> NormSpec<'_> {
    NormSpec::new("ln_f".into(), shape)
}

/// The parameters that this rank has of the last layer: the final norm, and the table unless it is the embedding's.
pub(crate) fn head_params(shape: &ShardedShape<'_>, layer: usize) -> Vec<ParamSpec> {
    let table = (!shape.shape.tied).then(|| shape.vocabulary_table(HEAD_TABLE, layer));
    norm(shape.shape).params(shape.parallel, layer).into_iter().chain(table).collect()
}

/// The terms of the loss that the last layer computes.
pub(crate) fn head_terms(shape: &GptShape) -> Vec<LossTerm> {
    [LossTerm::OF_TARGETS].into_iter().chain((shape.z_loss_multiplier != 0.0).then_some(Z_LOSS)).collect()
}

/// What a token costs in the head's product and loss. The loss reads the logits and leaves their gradient in their
/// place.
pub(crate) fn head_cost(shape: &GptShape) -> TokenCost {
    let (hidden, vocab) = (shape.hidden, shape.padded_vocab);
    TokenCost { weights: hidden * vocab, values: 3 * (hidden + vocab) + 2 * vocab, ..TokenCost::default() }
}

/// Final norm, logits and cross-entropy, one piece of the rows at a time. In training, forward also computes the
/// gradients of each piece (of the table and of the normed rows), so only one piece of the logits is ever in memory.
pub(crate) struct LanguageHead {
    pub(crate) norm: NormLayer,
    /// `(padded vocab, hidden)`, or this rank's rows of it; the embedding's table when tied.
    pub(crate) table: Param,
    /// The vocabulary, and the rows of the table that are here.
    vocab: VocabPart,
    /// The number of pieces that the rows are divided into; it divides the number of rows.
    pieces: usize,
    /// The sum of the losses.
    loss_sum: Tensor,
    /// The multiplier of the z-loss, and its sum, if training adds one.
    z_loss: Option<(f32, Tensor)>,
    /// The bound of logits.
    pub(crate) soft_cap: Option<f32>,
    ranks: TensorParallel,
    control: Tensor,
}

struct SavedHead {
    norm: SavedNorm,
    /// `(batch, seq, hidden)`; if ranks share the vocabulary, this rank's part of the sum.
    grad_normed: Tensor,
}

impl LanguageHead {
    /// The layer over its parameters.
    pub(crate) fn build(builder: &LayerBuilder<'_>) -> LanguageHead {
        let LayerBuilder { of, params, step } = builder;
        LanguageHead {
            norm: NormLayer { recompute: false, ..norm(of.shape).build(params) },
            table: params.get(if of.shape.tied { TOKEN_TABLE } else { HEAD_TABLE }),
            vocab: VocabPart { first_token: of.first_token(), vocab: of.shape.vocab },
            pieces: of.shape.loss_pieces,
            loss_sum: step.losses.loss(),
            z_loss: step.losses.of(Z_LOSS).map(|sum| (of.shape.z_loss_multiplier as f32, sum)),
            soft_cap: of.shape.logit_soft_cap.map(|cap| cap as f32),
            ranks: of.parallel.clone(),
            control: step.control,
        }
    }
}

impl LossHead for LanguageHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Tensor, Saved)> {
        let (_, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let normed = self.ranks.gather_rows(cx, "all_normed", normed)?;
        let targets = input.loss_targets();
        let (rows, hidden, dtype) = (targets.elements(), normed.shape.last(), normed.dtype);
        let train = cx.mode().trains();
        let losses = cx.tensor("losses", [rows], DType::F32)?;
        let mut z_loss = None;
        if let Some((multiplier, sum)) = self.z_loss.filter(|_| train) {
            z_loss = Some((ZLoss { multiplier, losses: cx.tensor("z_losses", [rows], DType::F32)? }, sum));
        }
        let grad_normed = if train { Some(cx.tensor("grad_normed", normed.shape, dtype)?) } else { None };
        let piece = rows / self.pieces;
        let logits = cx.tensor("logits", [piece, self.table.weight.shape.rows()], dtype)?;
        for first in (0..rows).step_by(piece) {
            let part = |tensor: Tensor| tensor.view(first * hidden, [piece, hidden]);
            cx.run(Gemm::linear(part(normed), self.table.weight, logits, Epilogue::None))?;
            let rows = |tensor: Tensor| tensor.view(first, [piece]);
            let z_loss = z_loss.map(|(z_loss, _)| ZLoss { losses: rows(z_loss.losses), ..z_loss });
            self.losses(cx, logits, rows(targets), rows(losses), z_loss)?;
            if let Some(grad_normed) = grad_normed {
                // The loss left the logits' gradient in their place.
                if let Some(grad_table) = self.table.grad {
                    let accumulate = adds_to_gradients(cx) || first > 0;
                    cx.run(Gemm::wgrad(logits, part(normed), grad_table, accumulate))?;
                }
                cx.run(Gemm::dgrad(logits, self.table.weight, part(grad_normed), Epilogue::None))?;
            }
        }
        cx.run(SumInto { input: losses, total: self.loss_sum, accumulate: true })?;
        if let Some((z_loss, total)) = z_loss {
            cx.run(SumInto { input: z_loss.losses, total, accumulate: true })?;
        }
        let saved = grad_normed.map(|grad_normed| SavedHead { norm, grad_normed });
        Ok((losses, Saved::new(saved)))
    }

    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved) -> Result<Tensor> {
        let Some(saved) = saved.get::<Option<SavedHead>>() else { unreachable!("a training step has a backward") };
        let grad_normed = self.ranks.reduce(cx, "grad_normed_here", saved.grad_normed)?;
        let mut sums = NormSums::default();
        let grad = self.norm.backward(cx, &saved.norm, grad_normed, None, None, &mut sums)?;
        sums.add_up(cx)?;
        Ok(grad)
    }
}

impl LanguageHead {
    /// Losses `(rows)` from logits `(rows, vocab here)`, and the `z_loss` of each row if there is one; in training
    /// leaves the logits' gradient in their place. Ranks that share the vocabulary exchange three numbers a row, not
    /// logits.
    fn losses(
        &self,
        cx: &mut StepContext<'_>,
        logits: Tensor,
        targets: Tensor,
        losses: Tensor,
        z_loss: Option<ZLoss>,
    ) -> Result<()> {
        let control = (cx.mode().trains()).then_some(self.control);
        let parallel = &self.ranks;
        let Some(group) = parallel.group() else {
            let (vocab, soft_cap) = (self.vocab.vocab, self.soft_cap);
            return cx.run(CrossEntropy { logits, targets, losses, vocab, soft_cap, z_loss, control });
        };
        let rows = logits.shape.rows();
        let own = cx.tensor("stats", [3, rows], DType::F32)?;
        let stats = cx.tensor("all_stats", [parallel.size(), 3, rows], DType::F32)?;
        let (part, soft_cap) = (self.vocab, self.soft_cap);
        cx.run(CrossEntropyPart { logits, targets, stats: own, part, soft_cap })?;
        let kind = CollectiveKind::AllGather;
        cx.run(Collective { kind, communicator: group.clone(), input: own, output: stats })?;
        cx.run(CrossEntropyJoin { logits, targets, stats, losses, part, soft_cap, z_loss, control })
    }
}

/// Mean squared error against the targets.
pub(crate) struct RegressionHead {
    pub(crate) control: Tensor,
    /// The sum of the losses.
    pub(crate) loss_sum: Tensor,
}

impl LossHead for RegressionHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Tensor, Saved)> {
        let losses = cx.tensor("losses", [input.x.shape.rows()], DType::F32)?;
        let mut grad = None;
        if cx.mode().trains() {
            grad = Some(cx.tensor("grad_prediction", input.x.shape, input.x.dtype)?);
        }
        let into = grad.map(|grad| (grad, self.control));
        cx.run(Mse { prediction: input.x, target: input.loss_targets(), losses, grad: into })?;
        if grad.is_none() {
            cx.run(self.sum(losses))?;
        }
        Ok((losses, Saved::new((losses, grad))))
    }

    /// The losses are summed here in training: a backward's sums go on next to the layers before.
    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved) -> Result<Tensor> {
        let &(losses, grad): &(Tensor, Option<Tensor>) = saved.get();
        cx.run(self.sum(losses))?;
        Ok(grad.unwrap_or_else(|| unreachable!("a training step has a backward")))
    }
}

impl RegressionHead {
    fn sum(&self, losses: Tensor) -> SumInto {
        SumInto { input: losses, total: self.loss_sum, accumulate: true }
    }
}
