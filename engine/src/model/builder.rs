//! The inputs for declaring and building layers.

use device::ops::DropoutPart;

use super::architecture::StepTensors;
use super::dropout::DropoutLayer;
use super::gpt::GptShape;
use super::tensor_parallel::{Packed, TensorParallel};
use crate::batch_sizes::sequence_share;
use crate::params::{ParamSpec, Params};

/// A shape, and the ranks that share its layers.
#[derive(Clone, Copy)]
pub(crate) struct ShardedShape<'m> {
    pub(crate) shape: &'m GptShape,
    pub(crate) parallel: &'m TensorParallel,
}

impl ShardedShape<'_> {
    /// A table `(padded vocab, hidden)` of the vocabulary, or this rank's rows of it. `layer` is the layer that it
    /// belongs to.
    pub(crate) fn vocabulary_table(&self, name: &str, layer: usize) -> ParamSpec {
        let GptShape { hidden, vocab, padded_vocab, .. } = *self.shape;
        let whole = ParamSpec::new(name, [padded_vocab, hidden], self.shape.matrix_init(), layer).with_rows(vocab);
        self.parallel.rows(whole, &[Packed::channels(padded_vocab)])
    }

    /// Key and value heads of this rank: at least one. Other ranks may have copies of it.
    pub(crate) fn own_kv_heads(&self) -> usize {
        (self.shape.kv_heads / self.parallel.size()).max(1)
    }

    /// The first token of this rank's rows of a vocabulary table.
    pub(crate) fn first_token(&self) -> usize {
        self.parallel.rank() * (self.shape.padded_vocab / self.parallel.size())
    }

    /// The dropout at a site of a layer, in all rows of the microbatch or in some.
    pub(crate) fn dropout(&self, rate: f64, layer: usize, site: u16, part: DropoutPart) -> DropoutLayer {
        let (seed, sequence) = (self.shape.seed, sequence_share(&self.parallel.ranks));
        DropoutLayer { rate: rate as f32, seed, layer: layer as u16, site, part, rows: None, sequence }
    }

    /// The dropout of values that are added to this rank's rows of the residual stream.
    pub(crate) fn hidden_dropout(&self, layer: usize, site: u16) -> DropoutLayer {
        let all_rows = self.dropout(self.shape.hidden_dropout, layer, site, DropoutPart::default());
        DropoutLayer { rows: Some(self.parallel.row_share()), ..all_rows }
    }
}

/// The inputs for building layers: their sizes, and their parameters in memory.
pub(crate) struct LayerBuilder<'m> {
    pub(crate) of: ShardedShape<'m>,
    pub(crate) params: &'m Params,
    pub(crate) step: StepTensors,
}
