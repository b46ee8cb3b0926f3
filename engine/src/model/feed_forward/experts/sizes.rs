//! The sizes and choices of a feed-forward layer of experts.

use common::choice;
use device::ops::Router;
use parallel::Axis;

/// Feed-forward layers of many experts, of which each token passes a few (Shazeer et al., 2017).
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer; at least `per_token`.
    pub count: usize,
    /// Experts that a token passes; above 0.
    pub per_token: usize,
    /// Width of an expert.
    pub ffn: usize,
    /// Width of the shared expert, which every token passes too; 0: there is none.
    pub shared_ffn: usize,
    /// Whether a block has experts, repeated over all blocks; empty if all blocks have experts. The others have a dense
    /// layer.
    pub pattern: Vec<bool>,
    /// How experts are chosen and weighed.
    pub router: Router,
    /// The bound of an expert's load; `None`: nothing is dropped.
    pub capacity: Option<Capacity>,
    /// The room for the rows that a rank sends another one in a training step, over the rows of balanced loads; above 0. A step
    /// whose rows need more is run again with room for all. `None`: each step has room for all. It matters to ranks that divide
    /// experts alone.
    pub row_budget: Option<f64>,
    /// The rate of a bias that each expert adds to the expert's score for the choice alone. Every step adds or
    /// subtracts this rate, and so moves loads towards each other without a loss (Wang et al., 2024); f32 in kernels.
    /// `None`: there are no biases.
    pub bias_update_rate: Option<f64>,
    /// The loss that keeps the experts' loads equal, if there is one.
    pub balance: Option<BalanceLoss>,
    /// The multiplier of the router's z-loss: of the mean square of the logits' logsumexp, over all tokens of a step;
    /// f32 in kernels. 0: there is none.
    pub z_loss_multiplier: f64,
}

impl Experts {
    /// Whether so many ranks that divide the experts gather the tokens of all: rows would take as many bytes or more.
    pub fn gather_tokens(&self, ranks: usize) -> bool {
        ranks > 1 && ranks <= self.per_token && self.per_token <= self.count / ranks
    }

    /// The ranks over which the balance loss sums loads: those with other tokens of the batch.
    pub fn loads_over(&self) -> Option<Axis> {
        self.balance.filter(|balance| balance.over == BalanceGroup::GlobalBatch).map(|_| Axis::Tokens)
    }
}

/// A bound of an expert's load in training (Lepikhin et al., 2020). Choices beyond it are dropped: they add nothing to their
/// token's output, and the token's other weights stay as they are. Evaluation and generation drop nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// The most choices that an expert takes, over the mean number; above 0.
    pub factor: f64,
    /// The choices that an expert keeps.
    pub keeps: Keeps,
}

choice! {
    /// The choices that an expert with too many keeps.
    pub enum Keeps {
        /// Choices with the highest weights; among equal weights the choices of the first tokens.
        HighestWeights = "probs",
        /// Choices of the first tokens of the microbatch.
        FirstTokens = "position",
    }
}

impl Capacity {
    /// The most choices of a microbatch that an expert takes, rounded as in Megatron. `choices` are those of all its
    /// tokens.
    pub fn choices(&self, choices: usize, experts: usize) -> usize {
        ((choices as f64 / experts as f64 * self.factor).ceil() as usize).max(1)
    }
}

/// The balance loss of every layer of experts (Fedus et al., 2021). It is 1 times the multiplier if all loads are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalanceLoss {
    /// The loss's factor; f32 in kernels.
    pub multiplier: f64,
    /// The tokens whose loads the balance loss compares.
    pub over: BalanceGroup,
}

choice! {
    /// The tokens whose loads a balance loss compares.
    pub enum BalanceGroup {
        /// The tokens of a microbatch.
        Microbatch = "microbatch",
        /// The tokens of each sequence, or of each document if a sequence has several.
        Sequence = "sequence",
        /// The tokens of all ranks' microbatches of the step, up to the present microbatch. Their scores are those of
        /// the microbatch.
        GlobalBatch = "global_batch",
    }
}
