//! A model before it has memory, and its layers afterwards.

use device::{DType, Shape, Tensor};

use super::layer::{Layer, LossHead};
use super::position::{RotaryTable, RotaryTables};
use super::sample_row::SampleRow;
use super::tensor_parallel::TensorParallel;
use crate::graph_options::GraphModule;
use crate::layer_partition::StageLayers;
use crate::params::{ParamSpec, Params};

/// Buffers of the step that layers read or add to, at fixed addresses.
#[derive(Clone, Copy, Debug)]
pub struct StepTensors {
    /// u8, a `Control`.
    pub control: Tensor,
    /// `(1)`, f32: the sum of the step's losses on this rank.
    pub loss_sum: Tensor,
    /// `(1)`, f32: the sum of the step's z-losses on this rank, where the architecture has them.
    pub z_loss_sum: Option<Tensor>,
    /// `(seq, head_dim / 2, 2)`, f32: the architecture's rotary tables.
    pub rotary: RotaryTables<Tensor>,
}

/// Consecutive layers of a model.
pub struct Chunk {
    /// Number of the first one within the whole model.
    pub first: usize,
    /// The layers, without the head.
    pub layers: Vec<Box<dyn Layer>>,
    /// The last layer of the whole model, if it is here.
    pub head: Option<Box<dyn LossHead>>,
}

impl Chunk {
    /// Number of the last layer within the whole model; the head counts.
    pub fn last(&self) -> usize {
        self.first + self.layers.len() + usize::from(self.head.is_some()) - 1
    }
}

/// A model, or a pipeline stage's layers of it. The first layer takes inputs, the last computes losses.
pub struct Model {
    /// The layers, in the order data pass them.
    pub chunks: Vec<Chunk>,
    /// Shape and type of what passes from any layer to the next; `None` where it differs from layer to layer.
    pub residual: Option<(Shape, DType)>,
    /// Where a sample's inputs and targets are.
    pub sample: SampleRow,
    /// One microbatch's inputs: shape and type.
    pub inputs: (Shape, DType),
    /// One microbatch's targets: shape and type.
    pub targets: (Shape, DType),
    /// The number of losses of a microbatch: one for each token, or one for each row.
    pub losses: usize,
    /// Training drops some values, so it needs records of samples.
    pub drops: bool,
}

/// Builds a model's layers over its parameters, once these have memory.
pub type Build = dyn Fn(&Params, StepTensors) -> Model;

/// A model before it has memory: the parameters to allocate, and how to build the layers over them.
pub struct Architecture {
    /// The parameters of this rank, in layer order.
    pub specs: Vec<ParamSpec>,
    /// Names of the parameters that other stages have.
    pub elsewhere: Vec<String>,
    /// The layers of this rank.
    pub layers: StageLayers,
    /// The ranks that share the layers.
    pub tensor: TensorParallel,
    /// The modules that it is made of; empty where layers have none of these.
    pub modules: Vec<GraphModule>,
    /// Angles of rotary positions; layers read them as [`StepTensors::rotary`].
    pub rotary: RotaryTables<RotaryTable>,
    /// Training adds a z-loss to the loss; see [`StepTensors::z_loss_sum`].
    pub has_z_loss: bool,
    /// A layer's weight gradients may be computed next to the backwards of the layers before it, unless layers have
    /// graphs of their own or gradients are summed over ranks. Their factors stay in memory until the microbatch's
    /// backward ends. No backward may write them.
    pub gradients_outlive_layers: bool,
    /// Builds the layers.
    pub build: Box<Build>,
}

impl Architecture {
    /// The same model, whose parameters with these names keep their values; see [`ParamSpec::frozen`].
    pub fn freeze(mut self, is_frozen: impl Fn(&str) -> bool) -> Architecture {
        self.specs.iter_mut().for_each(|spec| spec.frozen |= is_frozen(&spec.name));
        self
    }

    /// The same model on samples whose inputs and targets are elsewhere in a row.
    pub fn with_sample(mut self, row: SampleRow) -> Architecture {
        let build = self.build;
        self.build = Box::new(move |params, step| Model { sample: row.clone(), ..build(params, step) });
        self
    }
}
