//! Feed-forward layers of a block. To add an activation between two matrices: a file beside `gelu.rs`, a variant of
//! [`FeedForward`], and a line in `activation` below.

mod dense;
mod gelu;
mod glu;

use dense::{Activation, DenseSpec};
use device::ops::Gate;

use super::part::PartSpec;
use super::shape::FeedForward;

impl FeedForward {
    fn activation(self) -> &'static dyn Activation {
        match self {
            FeedForward::Gelu => &gelu::Gelu,
            FeedForward::SwiGlu => &glu::Glu(Gate::Silu),
            FeedForward::GeGlu => &glu::Glu(Gate::Gelu),
        }
    }

    /// Matrices that its first layer packs.
    pub(crate) fn packed(self) -> usize {
        self.activation().groups()
    }

    /// The width of the layer where none is given.
    pub fn default_width(self, hidden: usize) -> usize {
        self.activation().default_width(hidden)
    }

    /// The layer before it has memory.
    pub(crate) fn spec(self) -> Box<dyn PartSpec> {
        Box::new(DenseSpec { activation: self.activation() })
    }
}
