//! Feed-forward layers of a block: dense ones, and those of experts (`experts/`). To add an activation between two
//! matrices: a file beside `gelu.rs`, a variant of [`FeedForward`], and a line in `activation` below.

mod dense;
mod experts;
mod gelu;
mod glu;
mod own;
mod tiled;

use super::part::PartSpec;
use crate::model::gpt::{FeedForward, GptShape};
use dense::{Activation, DenseSpec};
use device::ops::Gate;
pub use experts::{BalanceGroup, BalanceLoss, Capacity, Experts, Keeps};
pub(crate) use experts::{router_terms, selection_biases};
use own::OwnSpec;

impl FeedForward {
    fn activation(self) -> &'static dyn Activation {
        match self {
            FeedForward::Gelu => &gelu::Gelu,
            FeedForward::SwiGlu => &glu::Glu(Gate::Silu),
            FeedForward::GeGlu => &glu::Glu(Gate::Gelu),
            FeedForward::ClampedSwiGlu => &glu::Glu(Gate::ClampedSilu),
        }
    }

    /// The number of matrices that the feed-forward layer's first product packs.
    pub(crate) fn packed(self) -> usize {
        self.activation().groups()
    }

    /// The width of the layer if none is given.
    pub fn default_width(self, hidden: usize) -> usize {
        self.activation().default_width(hidden)
    }

    /// The function of the feed-forward layer's gate; `None` if there is no gate.
    pub fn gate(self) -> Option<Gate> {
        match self {
            FeedForward::Gelu => None,
            FeedForward::SwiGlu => Some(Gate::Silu),
            FeedForward::GeGlu => Some(Gate::Gelu),
            FeedForward::ClampedSwiGlu => Some(Gate::ClampedSilu),
        }
    }
}

/// The feed-forward layer of a block before it has memory.
pub(crate) fn feed_forward(shape: &GptShape, block: usize) -> Box<dyn PartSpec> {
    let activation = shape.feed_forward.activation();
    let Some(experts) = shape.block_experts(block) else {
        if let Some(own) = &shape.own_part {
            return Box::new(OwnSpec(own.clone()));
        }
        return Box::new(DenseSpec { activation, name: "mlp", width: shape.ffn, drops: true });
    };
    let Some(gate) = shape.feed_forward.gate() else { unreachable!("experts have a gate: see GptShape::experts") };
    let shared = DenseSpec { activation, name: "mlp.shared", width: experts.shared_ffn, drops: false };
    let shared = (experts.shared_ffn > 0).then_some(shared);
    Box::new(experts::ExpertSpec { experts: experts.clone(), gate, shared })
}
