//! What ranks with other tokens divide beyond the parts that such ranks divide in any case.

/// What the ranks that have other tokens divide of a parameter. Each choice includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing.
    #[default]
    Nothing,
    /// Master weights and the optimizer's state (ZeRO stage 1, Rajbhandari et al., 2020).
    State,
    /// The gradients of blocks too (ZeRO stage 2). After each backward of a layer the ranks sum its gradients, and each
    /// keeps the sum of its part. The layers take turns in two buffers for whole gradients. Embedding and head take
    /// turns in a third one, if that takes less memory than whole gradients of both.
    Gradients,
    /// The weights too (ZeRO stage 3). They are gathered before each forward and each backward of a layer, one layer
    /// ahead. The layers take turns in buffers for whole weights, as they do for gradients.
    Weights,
}

impl Sharding {
    /// The name of the choice among users.
    pub fn word(self) -> &'static str {
        match self {
            Sharding::Nothing => "no_shard",
            Sharding::State => "optim",
            Sharding::Gradients => "optim_grads",
            Sharding::Weights => "optim_grads_params",
        }
    }
}

/// The units of a division among ranks: elements, or whole parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Division {
    /// Each has an equal part of a bucket's elements.
    #[default]
    Elements,
    /// Each has whole parameters: the update of a matrix needs all of it.
    Parameters,
}
