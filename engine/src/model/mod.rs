//! Models: what layers they have and what passes between them.

mod block;
mod cost;
mod decoder;
mod embedding;
mod gpt;
mod head;
mod linear;
mod mlp;
mod norm;
mod recompute;
mod rotary;
mod sample_row;
mod tensor_parallel;

use device::ops::{Dropout, DropoutPart, DropoutSite};
use device::{DType, Shape, Tensor};
use graph_manager::{Result, TensorTree};

use crate::layer_partition::StageLayers;
use crate::params::ParamSpec;
use crate::regions::Mode;
use crate::step_policy::StepContext;
pub use decoder::{Cursor, Decoder};
pub use gpt::{FeedForward, GptShape, Position, gpt, gpt_part};
pub use mlp::{MlpShape, mlp};
pub use rotary::{RotaryTable, Scaling};
pub use sample_row::SampleRow;
pub use tensor_parallel::TensorParallel;

/// What passes from layer to layer in the forward pass. The gradient that passes back is that of `x`, which is also
/// that of `delta`: the next layer only ever sees their sum.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    /// The residual stream `(batch, seq, hidden)`, with sequence parallelism this rank's rows `(1, rows, hidden)`; before the
    /// first layer the microbatch's inputs, after the last the losses `(batch * seq)`.
    pub x: Tensor,
    /// What the next norm adds to the residual stream; of its shape.
    pub delta: Option<Tensor>,
    /// The microbatch's targets, on the way to the losses.
    pub targets: Option<Tensor>,
    /// The microbatch's `SampleRecord`.
    pub record: Tensor,
}

impl TensorTree for Hidden {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Hidden> {
        Ok(Hidden {
            x: f("input", self.x)?,
            delta: self.delta.map(|delta| f("delta", delta)).transpose()?,
            targets: self.targets.map(|targets| f("targets", targets)).transpose()?,
            record: f("record", self.record)?,
        })
    }
}

impl Hidden {
    /// The targets, in the layer that compares with them.
    pub(crate) fn wanted(&self) -> Tensor {
        match self.targets {
            Some(targets) => targets,
            None => unreachable!("the head's chunk has the targets"),
        }
    }
}

/// Buffers of the step that layers read or add to, at fixed addresses.
#[derive(Clone, Copy, Debug)]
pub struct StepTensors {
    /// u8, a `Control`.
    pub control: Tensor,
    /// `(1)`, f32: the sum of the step's losses on this rank.
    pub loss_sum: Tensor,
    /// The rotary table, where the architecture has one.
    pub rotary: Option<Tensor>,
}

/// A layer: an explicit forward and an explicit backward, nothing else.
///
/// Both submit operations to `cx` and take their buffers from it. What backward needs, forward passes to it with
/// [`StepContext::save_for_backward`]. Backward passes gradients of weights to [`StepContext::defer`].
pub trait Layer {
    /// Computes the output from the input.
    ///
    /// # Errors
    /// What the device refused.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden>;

    /// Computes the input's gradient from the output's, and the parameters' `main_grad`.
    ///
    /// # Errors
    /// What the device refused.
    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor>;
}

/// Layers that data go through one after the other.
pub struct Chunk {
    /// Number of the first one within the whole model.
    pub first: usize,
    /// The layers.
    pub layers: Vec<Box<dyn Layer>>,
}

impl Chunk {
    /// Number of the last layer within the whole model.
    pub fn last(&self) -> usize {
        self.first + self.layers.len() - 1
    }
}

/// A model, or what a stage of a pipeline has of it. The model's first layer takes inputs, its last gives losses.
pub struct Model {
    /// The layers, in the order data pass them.
    pub chunks: Vec<Chunk>,
    /// Shape and type of what passes from any layer to the next; none where it differs from layer to layer.
    pub residual: Option<(Shape, DType)>,
    /// Where a sample's inputs and targets are.
    pub sample: SampleRow,
    /// One microbatch's inputs: shape and type.
    pub inputs: (Shape, DType),
    /// One microbatch's targets: shape and type.
    pub targets: (Shape, DType),
    /// The number of losses of a microbatch: one a token, or one a row.
    pub losses: usize,
}

/// Makes a model's layers over its parameters, once they have memory.
pub type Build = dyn Fn(&crate::params::Params, StepTensors) -> Model;

/// What a model needs before it has memory: its parameters, then its layers over them.
pub struct Architecture {
    /// The parameters that are here, in layer order.
    pub specs: Vec<ParamSpec>,
    /// Names of the parameters of other stages' layers.
    pub elsewhere: Vec<String>,
    /// The layers that are here.
    pub layers: StageLayers,
    /// The ranks that share the layers.
    pub tensor: TensorParallel,
    /// Angles of rotary positions, which layers read as [`StepTensors::rotary`].
    pub rotary: Option<RotaryTable>,
    /// Makes the layers once the parameters are placed.
    pub build: Box<Build>,
}

/// The dropout of one place in a model; off in evaluation and at rate 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropouts {
    pub(crate) rate: f32,
    pub(crate) seed: u64,
    pub(crate) layer: u16,
    pub(crate) site: u16,
    pub(crate) part: DropoutPart,
}

impl Dropouts {
    pub(crate) fn site(&self, cx: &StepContext<'_>, record: Tensor) -> Option<DropoutSite> {
        let on = self.rate > 0.0 && cx.mode() == Mode::Train;
        let Dropouts { rate, seed, layer, site, part } = *self;
        on.then_some(DropoutSite { rate, seed, layer, site, record, part })
    }
}

/// A gradient taken back through a dropout, if there was one.
pub(crate) fn undropped(
    cx: &mut StepContext<'_>,
    name: &'static str,
    grad: Tensor,
    site: Option<DropoutSite>,
) -> Result<Tensor> {
    let Some(site) = site else { return Ok(grad) };
    let output = cx.tensor(name, grad.shape, grad.dtype)?;
    cx.run(Dropout { input: grad, output, site })?;
    Ok(output)
}
