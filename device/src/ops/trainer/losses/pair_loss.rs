//! Losses of pairs of answers of which one is preferred.

mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{Control, HasTensors, Operation, ensure, ensure_dtype, ensure_elements, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// The loss of a pair. `h` is the chosen answer's log-ratio less the rejected one's. The log-ratio of an answer is its
/// log-probability less that under the reference model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preference {
    /// `-(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h)` (Rafailov et al., 2023).
    Sigmoid {
        /// The strength of the pull to the reference.
        beta: f32,
        /// `s`: the share of pairs that may be labelled the wrong way round.
        label_smoothing: f32,
    },
    /// `(h - 1 / (2 beta))^2`, with the mean over an answer's tokens in place of its sum (Azar et al., 2023).
    Ipo {
        /// The strength of the pull to the reference.
        beta: f32,
    },
    /// KTO (Ethayarajh et al., 2024), on answers with a label. A desirable one is a pair whose rejected answer has no
    /// tokens, an undesirable one a pair whose chosen answer has none. With a reward r the losses are
    /// `desirable * sigmoid(z - r)` and `undesirable * sigmoid(r - z)`; `z` is the mean reward of [mismatched
    /// answers](PairLoss::mismatched), or 0 if that is negative.
    Kto {
        /// The strength of the pull to the reference.
        beta: f32,
        /// The weight of desirable answers.
        desirable: f32,
        /// The weight of undesirable answers.
        undesirable: f32,
    },
}

/// The rewards of prompts with the answers of others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MismatchedRewards {
    /// `(1)`, f32: the sum over the answers of a step, on all ranks.
    pub sum: Tensor,
    /// u8, a [`Control`](crate::ops::Control): its `grad_scale` is one over their number.
    pub control: Tensor,
}

impl HasTensors for MismatchedRewards {
    tensors! { sum, control }
}

impl Preference {
    /// The strength of the pull to the reference.
    pub fn beta(self) -> f32 {
        match self {
            Preference::Sigmoid { beta, .. } | Preference::Ipo { beta } | Preference::Kto { beta, .. } => beta,
        }
    }

    /// Whether the parameters are in range.
    fn check(self, name: &'static str) -> Result<()> {
        let beta = self.beta();
        ensure(name, beta.is_finite() && beta > 0.0, || format!("beta is {beta}, needs more than 0"))?;
        match self {
            Preference::Ipo { .. } => Ok(()),
            Preference::Sigmoid { label_smoothing: s, .. } => {
                ensure(name, (0.0..=1.0).contains(&s), || format!("the label smoothing is {s}, needs 0 to 1"))
            }
            Preference::Kto { desirable, undesirable, .. } => {
                let is_weight = |weight: f32| weight.is_finite() && weight >= 0.0;
                ensure(name, is_weight(desirable) && is_weight(undesirable), || {
                    format!("the weights of answers are {desirable} and {undesirable}, need 0 or more")
                })
            }
        }
    }
}

/// The losses of pairs, and the weight that each target's loss has in them.
///
/// A sample has up to `most` pairs, one after the other: first the tokens of the chosen answer, then those of the rejected
/// one. A reward is `beta` times a log-ratio. The log-probability of an answer is minus the sum of its targets' losses, in
/// f64, rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct PairLoss {
    /// `(samples, tokens)`, f32: the loss of each target; 0 without one.
    pub losses: Tensor,
    /// `(samples, tokens)`, i32. A negative target has no loss, and is not counted.
    pub targets: Tensor,
    /// `(samples, most * 4)`, i32, for each pair: the place behind the chosen answer's last token, that behind the
    /// rejected one's, and the bits of the f32 log-probabilities of both under the reference model. The places of a pair
    /// that is not there are 0; such pairs come last.
    pub pairs: Tensor,
    /// `(samples, most, 6)`, f32: the results of the same pairs under the reference model. Its log-probabilities are in
    /// place of those in `pairs`.
    pub references: Option<Tensor>,
    /// The rewards of mismatched answers, for [`Preference::Kto`]; 0 without them.
    pub mismatched: Option<MismatchedRewards>,
    /// The loss of a pair.
    pub preference: Preference,
    /// `(samples, most, 6)`, f32, written, for each pair: its loss, the reward of the chosen answer and of the rejected
    /// one, 1 if the first is larger (of KTO 1 if the answer is desirable), and the log-probabilities of both. All 0 for
    /// a pair that is not there, rewards and log-probabilities 0 for an answer without tokens.
    pub results: Tensor,
    /// `(samples, tokens)`, f32, written: the derivative of the pair's loss by each target's loss; 0 outside of pairs.
    pub weights: Option<Tensor>,
}

impl PairLoss {
    /// Values of a pair in `pairs`.
    pub const COLUMNS: usize = 4;
    /// Values of a pair in `results`.
    pub const RESULTS: usize = 6;
    /// The rewards of the chosen and of the rejected answer among the results of a pair.
    pub const REWARDS: [usize; 2] = [1, 2];
    /// The log-probabilities of the chosen and of the rejected answer among the results of a pair.
    pub const LOG_PROBABILITIES: [usize; 2] = [4, 5];

    /// Samples, their tokens, and the most pairs of one.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let samples = self.pairs.shape.rows();
        [samples, self.losses.elements() / samples.max(1), self.pairs.shape.last() / PairLoss::COLUMNS]
    }
}

impl Operation for PairLoss {
    const NAME: &'static str = "pair_loss";

    fn check(&self) -> Result<()> {
        let [samples, tokens, most] = self.sizes();
        let (losses, targets) = (self.losses.elements(), self.targets.elements());
        self.preference.check(Self::NAME)?;
        ensure_dtype(Self::NAME, "losses", &self.losses, DType::F32)?;
        ensure_dtype(Self::NAME, "targets", &self.targets, DType::I32)?;
        ensure_dtype(Self::NAME, "pairs", &self.pairs, DType::I32)?;
        ensure_dtype(Self::NAME, "results", &self.results, DType::F32)?;
        ensure(Self::NAME, self.pairs.shape.last() == most * PairLoss::COLUMNS && most > 0, || {
            format!("`pairs` has {} columns, and a pair has {}", self.pairs.shape.last(), PairLoss::COLUMNS)
        })?;
        ensure(Self::NAME, samples * tokens == losses && losses == targets, || {
            format!("{losses} losses and {targets} targets of {samples} samples")
        })?;
        ensure_elements(Self::NAME, "results", &self.results, samples * most * PairLoss::RESULTS)?;
        if let Some(references) = &self.references {
            ensure_values(Self::NAME, "references", references, DType::F32, samples * most * PairLoss::RESULTS)?;
        }
        if let Some(MismatchedRewards { sum, control }) = &self.mismatched {
            ensure_values(Self::NAME, "the sum of mismatched rewards", sum, DType::F32, 1)?;
            ensure_values(Self::NAME, "control", control, DType::U8, size_of::<Control>())?;
        }
        let Some(weights) = &self.weights else { return Ok(()) };
        ensure_values(Self::NAME, "weights", weights, DType::F32, losses)
    }

    tensors! { read losses, targets, pairs, references, mismatched; write results, weights }
}

kernel_struct! {
    /// The struct of the same name in `kernels/losses/pair_loss.cu`; 0 is the null pointer.
    PairLossArgs {
        u64: losses, targets, pairs, references, mismatched, control, results, weights;
        u32: tokens, most, kind;
        f32: beta, label_smoothing, desirable, undesirable;
        u32: padding;
    }
}

/// Values of `kind`.
const DPO: u32 = 0;
const IPO: u32 = 1;
const KTO: u32 = 2;

impl KernelOperation for PairLoss {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/pair_loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let [samples, tokens, most] = self.sizes();
        let block = fill! {
            PairLossArgs: self.{losses, targets, pairs, references, results, weights};
            mismatched: self.mismatched.map(|of| of.sum), control: self.mismatched.map(|of| of.control), tokens, most,
            kind: DPO, beta: self.preference.beta(), label_smoothing: 0.0, desirable: 0.0, undesirable: 0.0,
            padding: 0u32
        };
        let block = match self.preference {
            Preference::Sigmoid { label_smoothing, .. } => PairLossArgs { label_smoothing, ..block },
            Preference::Ipo { .. } => PairLossArgs { kind: IPO, ..block },
            Preference::Kto { desirable, undesirable, .. } => {
                PairLossArgs { kind: KTO, desirable, undesirable, ..block }
            }
        };
        queue.launch_block("pair_loss", Grid::line(samples * most, 256), &block)
    }
}
