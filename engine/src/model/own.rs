//! Parts of blocks and losses that a user of this crate adds. A [`GptShape`] names them; everything else of a step, such as
//! graphs, recompute and sums over ranks, treats them as the engine's.

use std::fmt::Debug;

use device::Tensor;
use graph_manager::Result;

use super::architecture::StepTensors;
use super::gpt::GptShape;
use super::layer::Saved;
use super::loss_term::LossTerm;
use crate::params::{Init, Param};
use crate::step_policy::StepContext;

/// A part that takes the place of dense feed-forward layers: [`GptShape::own_part`]. It computes each token by itself, so
/// it does not care which tokens a rank has. Each rank has its parameters whole.
pub trait OwnPart: Debug + Send + Sync {
    /// The parameters of a block, in the order for [`OwnPart::build`].
    fn params(&self, shape: &GptShape, block: usize) -> Vec<OwnParam>;

    /// The part of a block over the part's parameters. `step` has the sums of [`OwnPart::terms`].
    fn build(&self, params: &[Param], step: &StepTensors) -> Box<dyn OwnLayer>;

    /// Multiplications by weights of a token, in forward: for FLOP/s and predictions. 0 if nobody asks.
    fn multiplications(&self, _shape: &GptShape) -> usize {
        0
    }

    /// The terms that the part's layers add to the loss: [`LossTerm::minimised`]. A layer adds a value for each target
    /// to the sum of its term, and the gradient to those of its parameters and its input.
    fn terms(&self) -> Vec<LossTerm> {
        Vec::new()
    }
}

/// A parameter of an [`OwnPart`], f32 as a master weight, and in the model's precision where layers read it.
#[derive(Clone, Debug)]
pub struct OwnParam {
    /// The name within the block: that of the model's parameter is `h.BLOCK.mlp.NAME`.
    pub name: &'static str,
    /// The sizes, `(out features, in features)` of a linear weight.
    pub sizes: Vec<usize>,
    /// The first values.
    pub init: Init,
}

/// An [`OwnPart`] over the parameters of a block.
pub trait OwnLayer {
    /// The values `(batch, seq, hidden)` that are added to the residual stream, from the normed stream `input` of the same
    /// shape, and the values that backward needs. Nothing may write `input`.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, input: Tensor) -> Result<(Tensor, Saved)>;

    /// The gradient of `input` from `grad`, the gradient of the output. Also computes the gradients of the parameters,
    /// [`Param::grad`]: [`adds_to_gradients`](super::adds_to_gradients) says whether it adds to them or overwrites them.
    /// `saved` is what forward returned.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>, input: Tensor, saved: &Saved, grad: Tensor) -> Result<Tensor>;
}

/// A loss of targets that takes the place of cross-entropy: [`GptShape::own_loss`]. It needs the logits of the whole
/// vocabulary, so ranks do not divide that.
pub trait OwnLoss: Debug + Send + Sync {
    /// Computes the losses of some rows, and in training leaves the gradient in place of the logits.
    ///
    /// # Errors
    /// Errors of the device.
    fn run(&self, cx: &mut StepContext<'_>, rows: LossRows) -> Result<()>;
}

/// Rows of logits, and the tensors of the rows' losses.
#[derive(Clone, Copy, Debug)]
pub struct LossRows {
    /// `(rows, padded vocab)`, in the type of activations; the columns from `vocab` on are padding. In training their
    /// gradient takes their place, 0 in the padding and in rows without a target.
    pub logits: Tensor,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// `(rows)`, i32; a target without loss is -1.
    pub targets: Tensor,
    /// `(rows)`, f32, written; 0 without a target.
    pub losses: Tensor,
    /// u8, a [`Control`](device::ops::Control), in training: its `grad_scale` is the gradient of each loss.
    pub control: Option<Tensor>,
}
