//! The parts of a block: a kind of part before it has memory ([`PartSpec`]), and the part over its parameters
//! ([`BlockPart`]). Each kind has both in one file of `attention/` or `feed_forward/`.

use device::Tensor;
use graph_manager::Result;

use super::attention::attended::Attended;
use super::builder::{LayerBuilder, ShardedShape};
use super::gpt::GptShape;
use super::layer::Saved;
use super::linear::{Linear, WeightInput};
use super::norm::{NormLayer, Normed, SavedNorm};
use super::sequence::{RotaryTables, Samples};
use super::tensor_parallel::TensorParallel;
use super::token_cost::TokenCost;
use crate::fp8::Operand;
use crate::graph_options::GraphModule;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// A kind of block part before it has memory.
pub(crate) trait PartSpec {
    /// The parameters that this rank has of the part in a block. `layer` is the layer that they belong to.
    fn params(&self, shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec>;

    /// The part of a block over the part's parameters.
    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart>;

    /// The cost of a token in the part, on all ranks together, in samples of so many tokens.
    fn cost(&self, shape: &GptShape, block: usize, tokens_per_sample: usize) -> TokenCost;
}

/// A part of a block: computes the values that are added to the residual stream, from the normed residual stream.
///
/// Both have the residual stream's shape, `(batch, seq, hidden)`, with sequence parallelism `(1, rows, hidden)`.
pub(crate) trait BlockPart {
    /// The values that are added to the residual stream, and the values that backward needs.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)>;

    /// The output of attention, if the part has attention. `saved` is what its forward returned.
    fn attended(&self, _saved: &Saved) -> Option<Attended> {
        None
    }

    /// As [`Layer::for_backward`](super::layer::Layer::for_backward), of a part.
    fn for_backward(&self, _saved: &Saved) -> Vec<Tensor> {
        Vec::new()
    }

    /// [`BlockPart::forward`] again, in backward and to the same bits: all but attention, whose output was kept.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward_around(
        &self,
        _cx: &mut StepContext<'_>,
        _normed: Normed,
        _samples: Samples,
        _kept: Attended,
    ) -> Result<(Tensor, Saved)> {
        unreachable!("a part without attention keeps no output of it")
    }

    /// The values that backward needs, without the output: for a backward that recomputes its forward.
    ///
    /// # Errors
    /// Errors of the device.
    fn prepare_backward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<Saved> {
        self.forward(cx, normed, samples).map(|(_, saved)| saved)
    }

    /// The gradient of the normed residual stream from `grad`, the gradient of the output. Also computes the gradients
    /// of the part's parameters. Nothing may write their sources afterwards.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor>;

    /// Forward of new tokens in a model that decodes.
    ///
    /// # Errors
    /// Errors of the device.
    fn decode(&self, cx: &mut StepContext<'_>, normed: Tensor, _step: &DecodeStep) -> Result<Tensor> {
        let samples = Samples { record: None, documents: None, positions_here: None, real: None };
        self.forward(cx, Normed::Stored(normed), samples).map(|(output, _)| output)
    }

    /// The number of values that decoding caches of each token; `None` if the part caches nothing.
    fn cache_width(&self) -> Option<usize> {
        None
    }

    /// Whether the part's first layer computes the normed values, during quantisation. The norm then stores only its
    /// statistics.
    fn computes_input(&self) -> bool {
        false
    }

    /// Called once, while the block is built. The backward of the part's norm reads the gradient of the residual stream
    /// after the part, so it can also sum it over all rows: that sum is the gradient of the output's bias. A part that
    /// leaves this to the norm returns its bias, and no longer computes the bias's gradient.
    fn leave_bias_to_norm(&mut self) -> Option<Param> {
        None
    }

    /// The part as two halves; `None` if graphs have the whole part or nothing.
    fn halves(&self) -> Option<&dyn Halves> {
        None
    }
}

/// A part in two halves. Graphs may have the first alone, so each half has a region of its own then. Forward runs the first
/// half, then the second; backward the second, then the first. Together they do what the part does.
pub(crate) trait Halves {
    /// The module of the first half.
    fn first(&self) -> GraphModule;

    /// The values that the second half reads.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward_first(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<Saved>;

    /// As [`BlockPart::forward`], from the values of the first half.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward_second(&self, cx: &mut StepContext<'_>, first: Saved, samples: Samples) -> Result<(Tensor, Saved)>;

    /// The values that the first half's backward reads, from `grad`, the gradient of the output.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward_second(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        input: SavedInput<'_>,
        saved: &Saved,
    ) -> Result<Vec<Tensor>>;

    /// As [`BlockPart::backward`], from the values that the second half's backward `left`.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward_first(&self, cx: &mut StepContext<'_>, left: &[Tensor], saved: &Saved) -> Result<Tensor>;
}

/// The input of a part's backward, read from the residual stream.
pub(crate) enum SavedInput<'b> {
    /// The output of a norm, from the values that the norm saved.
    Norm(&'b NormLayer, &'b SavedNorm),
    /// The stream that the part read.
    Stored(&'b Normed),
}

impl SavedInput<'_> {
    /// The stream that the part read: this rank's rows.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn read(&self, cx: &mut StepContext<'_>) -> Result<Normed> {
        match self {
            SavedInput::Norm(norm, saved) => norm.output(cx, saved),
            SavedInput::Stored(read) => Ok(**read),
        }
    }

    /// The part's input, in the form that the weight gradient of the part's first layer, `linear`, reads: as the part
    /// `saved` it, as the source that it is computed from, or gathered.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn gather(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        saved: Option<Operand>,
        linear: &Linear,
        ranks: &TensorParallel,
    ) -> Result<WeightInput> {
        if let Some(saved) = saved {
            return WeightInput::saved(cx, name, saved, linear, ranks);
        }
        match self.read(cx)? {
            Normed::Computed(source) => WeightInput::computed(cx, name, source, linear, ranks),
            Normed::Stored(normed) => Ok(WeightInput::Gathered(ranks.gather_rows(cx, name, normed)?)),
        }
    }
}

/// Facts about the tokens that are decoded, for parts.
pub(crate) struct DecodeStep {
    /// `(rows, head_dim / 2, 2)`, f32: rotary angles of the new tokens.
    pub(crate) angles: RotaryTables<Tensor>,
    /// `(1)`, i32: position of the first new token.
    pub(crate) start: Tensor,
    /// `(1, seq, cache width)`, for a part that has one.
    pub(crate) cache: Option<Tensor>,
}
