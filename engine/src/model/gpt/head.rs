//! The last layers: hidden states to losses.

use std::sync::Arc;

use device::ops::{
    Add, BiasGrad, Collective, CollectiveKind, CrossEntropy, CrossEntropyJoin, CrossEntropyPart, Epilogue, Fill, Gemm,
    MismatchedRewards, Mse, PairLoss, Preference, SumInto, VocabPart, ZLoss,
};
use device::{DType, Tensor};
use graph_manager::Result;

use super::embedding::TOKEN_TABLE;
use super::further::FurtherLayer;
use super::shape::{FurtherTokens, GptShape};
use crate::microbatch::adds_to_gradients;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::layer::{LossHead, Saved};
use crate::model::loss_term::{LossTerm, OF_LABELLED, OF_PAIRS};
use crate::model::norm::{NormLayer, NormSpec, NormSums, SavedNorm};
use crate::model::own::{LossRows, OwnLoss};
use crate::model::sequence::{Hidden, WholeSamples};
use crate::model::tensor_parallel::TensorParallel;
use crate::model::token_cost::TokenCost;
use crate::params::{Param, ParamSpec};
use crate::regions::Mode;
use crate::step_policy::StepContext;

/// The matrix of a head that is not tied.
const HEAD_TABLE: &str = "lm_head.weight";

/// See [`ZLoss`].
const Z_LOSS: LossTerm = LossTerm::minimised("z_loss");

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
    let of_targets: &[LossTerm] = match shape.preference {
        None => &[LossTerm::OF_TARGETS],
        Some(Preference::Kto { .. }) => &OF_LABELLED,
        Some(_) => &OF_PAIRS,
    };
    of_targets.iter().copied().chain((shape.z_loss_multiplier != 0.0).then_some(Z_LOSS)).collect()
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
    /// The table, `(padded vocab, hidden)`, or this rank's rows of the table; the embedding's table when tied.
    pub(crate) table: Param,
    /// The vocabulary, and the rows of the table that are here.
    vocab: VocabPart,
    /// The number of pieces that the rows are divided into; a divisor of the number of rows.
    pieces: usize,
    /// The sum of the losses.
    loss_sum: Tensor,
    /// The multiplier of the z-loss, and the z-loss's sum, if training adds a z-loss.
    z_loss: Option<(f32, Tensor)>,
    /// The loss of pairs of answers, and the sums of the pairs' results, if samples have pairs.
    preference: Option<(Preference, Tensor)>,
    /// The rewards of mismatched answers, if the loss asks for such rewards.
    mismatched: Option<MismatchedRewards>,
    /// A loss in place of cross-entropy.
    own: Option<Arc<dyn OwnLoss>>,
    /// The layers that predict further tokens, and the factor of the layers' gradients.
    further: Vec<FurtherLayer>,
    further_weight: f32,
    /// The bound of logits.
    pub(crate) soft_cap: Option<f32>,
    ranks: TensorParallel,
    /// The ranks that divide samples.
    whole: Option<WholeSamples>,
    control: Tensor,
}

struct SavedHead {
    norm: SavedNorm,
    /// `(batch, seq, hidden)`; if ranks share the vocabulary, this rank's part of the sum.
    grad_normed: Tensor,
    /// The gradient of this rank's normed rows that comes from layers that predict further tokens.
    of_further: Option<Tensor>,
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
            preference: of.shape.preference.zip(step.losses.of_pairs()),
            mismatched: step.mismatched_rewards.map(|sum| MismatchedRewards { sum, control: step.control }),
            own: of.shape.own_loss.clone(),
            further: FurtherLayer::build(builder),
            further_weight: of.shape.further_tokens.map_or(0.0, FurtherTokens::weight),
            soft_cap: of.shape.logit_soft_cap.map(|cap| cap as f32),
            ranks: of.parallel.clone(),
            whole: WholeSamples::new(&of.parallel.ranks),
            control: step.control,
        }
    }
}

impl LossHead for LanguageHead {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Tensor, Saved)> {
        let (_, normed_here, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let normed = self.ranks.gather_rows(cx, "all_normed", normed_here)?;
        let targets = input.loss_targets();
        let rows = targets.elements();
        let train = cx.mode().trains();
        let losses = cx.tensor("losses", [rows], DType::F32)?;
        let mut z_loss = None;
        if let Some((multiplier, sum)) = self.z_loss.filter(|_| train) {
            z_loss = Some((ZLoss { multiplier, losses: cx.tensor("z_losses", [rows], DType::F32)? }, sum));
        }
        let grad_normed = if train { Some(cx.tensor("grad_normed", normed.shape, normed.dtype)?) } else { None };
        let pairs = self.pairs(cx, &input, rows)?;
        let z_losses = z_loss.map(|(z_loss, _)| z_loss);
        let adds = adds_to_gradients(cx);
        let gradient = grad_normed.map(|normed| GradientOfRows { normed, weights: None, adds });
        self.in_pieces(cx, AllRows { normed, targets, losses, z_loss: z_losses, pairs, gradient })?;
        match &pairs {
            None => cx.run(SumInto { input: losses, total: self.loss_sum, accumulate: true })?,
            Some(OfPairs { results, sums, .. }) => {
                let grad_output = results.reshape([results.elements() / PairLoss::RESULTS, PairLoss::RESULTS]);
                // Ranks that divide samples have the same results.
                if self.whole.as_ref().is_none_or(|whole| whole.share.rank == 0) {
                    cx.run(BiasGrad { grad_output, grad_bias: *sums, accumulate: true })?;
                }
            }
        }
        if let Some((z_loss, total)) = z_loss {
            cx.run(SumInto { input: z_loss.losses, total, accumulate: true })?;
        }
        let of_further = self.further_losses(cx, input, normed_here)?;
        let saved = grad_normed.map(|grad_normed| SavedHead { norm, grad_normed, of_further });
        Ok((pairs.map_or(losses, |pairs| pairs.results), Saved::new(saved)))
    }

    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved) -> Result<Tensor> {
        let Some(saved) = saved.get::<Option<SavedHead>>() else { unreachable!("a training step has a backward") };
        let grad_normed = self.ranks.reduce(cx, "grad_normed_here", saved.grad_normed)?;
        if let Some(b) = saved.of_further {
            cx.run(Add { a: grad_normed, b, output: grad_normed })?;
        }
        let mut sums = NormSums::default();
        let grad = self.norm.backward(cx, &saved.norm, grad_normed, None, None, &mut sums)?;
        sums.add_up(cx)?;
        Ok(grad)
    }
}

/// All rows of a microbatch, and the tensors of the rows' losses.
struct AllRows {
    /// `(rows, hidden)`: the values that the table is multiplied with.
    normed: Tensor,
    targets: Tensor,
    losses: Tensor,
    z_loss: Option<ZLoss>,
    pairs: Option<OfPairs>,
    /// In training.
    gradient: Option<GradientOfRows>,
}

/// The gradient of all rows.
#[derive(Clone, Copy)]
struct GradientOfRows {
    /// As the rows, written.
    normed: Tensor,
    /// `(rows)`, f32: factors of the rows' gradients.
    weights: Option<Tensor>,
    /// The table's gradient is added to.
    adds: bool,
}

/// Rows of logits, and the tensors of the rows' losses.
#[derive(Clone, Copy)]
struct Rows {
    /// The logits, `(rows, vocab here)`; in training the gradient takes the logits' place.
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    z_loss: Option<ZLoss>,
}

/// The gradient of logits is asked for.
#[derive(Clone, Copy)]
struct Gradient {
    /// Factors of the rows' gradients.
    weights: Option<Tensor>,
}

/// The pairs of answers of a microbatch or of a piece.
#[derive(Clone, Copy)]
struct OfPairs {
    preference: Preference,
    pairs: Tensor,
    /// The results under the reference model, if the pairs do not have that model's log-probabilities.
    references: Option<Tensor>,
    mismatched: Option<MismatchedRewards>,
    results: Tensor,
    /// In training.
    weights: Option<Tensor>,
    /// The sums of the results.
    sums: Tensor,
}

impl OfPairs {
    /// The pairs of one of equal pieces of the samples.
    fn piece(self, piece: usize, pieces: usize) -> OfPairs {
        let of = |tensor: Tensor| {
            let samples = tensor.shape.rows() / pieces;
            tensor.narrow(piece * samples, samples)
        };
        OfPairs {
            pairs: of(self.pairs),
            references: self.references.map(of),
            results: of(self.results),
            weights: self.weights.map(of),
            ..self
        }
    }
}

impl LanguageHead {
    /// The losses of all rows, one piece after the other, and in training the gradients of the rows and of the table.
    fn in_pieces(&self, cx: &mut StepContext<'_>, all: AllRows) -> Result<()> {
        let AllRows { normed, targets, losses, z_loss, pairs, gradient } = all;
        let (rows, hidden) = (targets.elements(), normed.shape.last());
        let piece = rows / self.pieces;
        let logits = cx.tensor("logits", [piece, self.table.weight.shape.rows()], normed.dtype)?;
        for first in (0..rows).step_by(piece) {
            let part = |tensor: Tensor| tensor.view(first * hidden, [piece, hidden]);
            cx.run(Gemm::linear(part(normed), self.table.weight, logits, Epilogue::None))?;
            let rows = |tensor: Tensor| tensor.view(first, [piece]);
            let z_loss = z_loss.map(|z_loss| ZLoss { losses: rows(z_loss.losses), ..z_loss });
            let weights = gradient.map(|of| Gradient { weights: of.weights.map(rows) });
            let rows = Rows { logits, targets: rows(targets), losses: rows(losses), z_loss };
            match &pairs {
                None => self.losses(cx, rows, weights)?,
                Some(pairs) => self.pair_losses(cx, rows, pairs.piece(first / piece, self.pieces))?,
            }
            if let Some(gradient) = gradient {
                // The loss left the logits' gradient in their place.
                if let Some(grad_table) = self.table.grad {
                    cx.run(Gemm::wgrad(logits, part(normed), grad_table, gradient.adds || first > 0))?;
                }
                cx.run(Gemm::dgrad(logits, self.table.weight, part(gradient.normed), Epilogue::None))?;
            }
        }
        Ok(())
    }

    /// Forward and backward of the layers that predict further tokens, in training. Returns the gradient of this rank's
    /// rows of the normed stream.
    fn further_losses(&self, cx: &mut StepContext<'_>, input: Hidden, normed: Tensor) -> Result<Option<Tensor>> {
        let Some(further) = input.further else { return Ok(None) };
        let of_batch = input.loss_targets().shape;
        let weights = cx.tensor("weights_of_further", [of_batch.elements()], DType::F32)?;
        cx.run(Fill { output: weights, value: self.further_weight })?;
        let (mut before, mut all) = (normed, Vec::new());
        for (depth, layer) in self.further.iter().enumerate() {
            let [tokens, targets] = [0, 1].map(|part| further.view((2 * depth + part) * of_batch.elements(), of_batch));
            let (after, saved) = layer.forward(cx, before, tokens, input)?;
            let normed = self.ranks.gather_rows(cx, "all_normed", after)?;
            let losses = cx.tensor("further_losses", [of_batch.elements()], DType::F32)?;
            let grad = cx.tensor("grad_normed", normed.shape, normed.dtype)?;
            let gradient = Some(GradientOfRows { normed: grad, weights: Some(weights), adds: true });
            self.in_pieces(cx, AllRows { normed, targets, losses, z_loss: None, pairs: None, gradient })?;
            cx.run(SumInto { input: losses, total: layer.loss_sum, accumulate: true })?;
            all.push((layer, saved, self.ranks.reduce(cx, "grad_normed_here", grad)?));
            before = after;
        }
        let mut grad = all.last().map(|(.., grad)| *grad);
        while let Some((layer, saved, _)) = all.pop() {
            let residual = all.last().map(|(.., grad)| *grad);
            grad = grad.map(|grad| layer.backward(cx, &saved, grad, residual)).transpose()?;
        }
        Ok(grad)
    }

    /// The microbatch's pairs with tensors for the pairs' results; `None` if samples have no pairs.
    fn pairs(&self, cx: &mut StepContext<'_>, input: &Hidden, rows: usize) -> Result<Option<OfPairs>> {
        let (Some((preference, sums)), Some(pairs)) = (self.preference, input.pairs) else { return Ok(None) };
        let samples = pairs.shape.rows();
        let most = pairs.shape.last() / PairLoss::COLUMNS;
        let results = cx.tensor("results_of_pairs", [samples, most * PairLoss::RESULTS], DType::F32)?;
        let mut weights = None;
        if cx.mode().trains() {
            weights = Some(cx.tensor("weights_of_losses", [samples, rows / samples], DType::F32)?);
        }
        let mismatched = self.mismatched.filter(|_| cx.mode().mode != Mode::Mismatched);
        Ok(Some(OfPairs { preference, pairs, references: input.references, mismatched, results, weights, sums }))
    }

    /// The results of pairs, from logits of whole samples; in training leaves the gradient in place of the logits. A
    /// pair's gradient depends on all of its tokens, so the logits are read once for the losses and once for that.
    fn pair_losses(&self, cx: &mut StepContext<'_>, rows: Rows, of: OfPairs) -> Result<()> {
        let Rows { logits, targets, losses, .. } = rows;
        let stats = self.stats(cx, logits, targets)?;
        self.losses_of_stats(cx, Rows { z_loss: None, ..rows }, stats, None)?;
        let OfPairs { preference, pairs, references, mismatched, results, weights, .. } = of;
        let Some(whole) = &self.whole else {
            cx.run(PairLoss { losses, targets, pairs, references, mismatched, preference, results, weights })?;
            return self.weighted_losses(cx, rows, stats, weights);
        };
        let samples = pairs.shape.rows();
        let all_losses = whole.gather(cx, "losses_of_samples", losses, samples)?;
        let all_targets = whole.gather(cx, "targets_of_samples", targets, samples)?;
        let shape = all_losses.shape;
        let all_weights = weights.map(|_| cx.tensor("weights_of_samples", shape, DType::F32)).transpose()?;
        cx.run(PairLoss {
            losses: all_losses,
            targets: all_targets,
            pairs,
            references,
            mismatched,
            preference,
            results,
            weights: all_weights,
        })?;
        if let (Some(all), Some(here)) = (all_weights, weights) {
            whole.take(cx, all, here, samples)?;
        }
        self.weighted_losses(cx, rows, stats, weights)
    }

    /// Leaves the gradient in place of the logits, if rows have weights.
    fn weighted_losses(
        &self,
        cx: &StepContext<'_>,
        rows: Rows,
        stats: Option<Tensor>,
        weights: Option<Tensor>,
    ) -> Result<()> {
        match weights {
            None => Ok(()),
            Some(weights) => self.losses_of_stats(cx, rows, stats, Some(Gradient { weights: Some(weights) })),
        }
    }

    /// The losses of rows; in training leaves the gradient in place of the logits.
    fn losses(&self, cx: &mut StepContext<'_>, rows: Rows, gradient: Option<Gradient>) -> Result<()> {
        if let Some(own) = &self.own {
            let Rows { logits, targets, losses, .. } = rows;
            let control = gradient.map(|_| self.control);
            return own.run(cx, LossRows { logits, vocab: self.vocab.vocab, targets, losses, control });
        }
        let stats = self.stats(cx, rows.logits, rows.targets)?;
        self.losses_of_stats(cx, rows, stats, gradient)
    }

    /// `(ranks, 3, rows)`, f32: ranks that share the vocabulary exchange three numbers a row, not logits. `None` if this
    /// rank has all of it.
    fn stats(&self, cx: &mut StepContext<'_>, logits: Tensor, targets: Tensor) -> Result<Option<Tensor>> {
        let parallel = &self.ranks;
        let Some(group) = parallel.group() else { return Ok(None) };
        let rows = logits.shape.rows();
        let own = cx.tensor("stats", [3, rows], DType::F32)?;
        let stats = cx.tensor("all_stats", [parallel.size(), 3, rows], DType::F32)?;
        cx.run(CrossEntropyPart { logits, targets, stats: own, part: self.vocab, soft_cap: self.soft_cap })?;
        let kind = CollectiveKind::AllGather;
        cx.run(Collective { kind, communicator: group.clone(), input: own, output: stats })?;
        Ok(Some(stats))
    }

    /// As [`LanguageHead::losses`], with the [numbers of all ranks](LanguageHead::stats).
    fn losses_of_stats(
        &self,
        cx: &StepContext<'_>,
        Rows { logits, targets, losses, z_loss }: Rows,
        stats: Option<Tensor>,
        gradient: Option<Gradient>,
    ) -> Result<()> {
        let control = gradient.map(|_| self.control);
        let weights = gradient.and_then(|gradient| gradient.weights);
        let (part, soft_cap) = (self.vocab, self.soft_cap);
        match stats {
            None => {
                let vocab = part.vocab;
                cx.run(CrossEntropy { logits, targets, losses, vocab, soft_cap, z_loss, weights, control })
            }
            Some(stats) => {
                cx.run(CrossEntropyJoin { logits, targets, stats, losses, part, soft_cap, z_loss, weights, control })
            }
        }
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
