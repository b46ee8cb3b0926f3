//! A model before memory is allocated, and the model's layers afterwards.

use std::rc::Rc;

use device::ops::{CodeForm, Preference};
use device::{DType, Shape, Tensor};
use parallel::{Axis, Place, Ranks};

use super::expert_loads::{ExpertLoads, SelectionBias};
use super::layer::{Layer, LossHead};
use super::loss_term::{LossTerm, TermSums};
use super::sequence::{RotaryTable, RotaryTables, SampleRow, TokensHere};
use crate::batch_sizes::BatchSizes;
use crate::graph_options::GraphModule;
use crate::layer_partition::StageLayers;
use crate::params::{ParamSpec, Params};

/// Buffers of the step that layers read or add to, at fixed addresses.
#[derive(Clone, Debug)]
pub struct StepTensors {
    /// u8, a `Control`.
    pub control: Tensor,
    /// The sums of the step's losses on this rank.
    pub losses: TermSums,
    /// The loads of the step's experts on this rank, if the model has experts.
    pub expert_loads: Option<ExpertLoads>,
    /// `(1)`, f32: the sum of the rewards of mismatched answers, if the loss asks for it.
    pub mismatched_rewards: Option<Tensor>,
    /// `(1)`, f32: the step's rows of experts that had no room on this rank, if the model has a row budget.
    pub rows_beyond: Option<Tensor>,
    /// `(max_seq_len, head_dim / 2, 2)`, f32: the architecture's rotary tables. If ranks divide samples, they have the rows
    /// of `here`.
    pub rotary: RotaryTables<Tensor>,
    /// The tokens of samples that are here.
    pub here: TokensHere,
    /// The positions of the tokens of `here`, i32, if ranks divide samples: `(samples, tokens)` for each length.
    pub positions: Option<Tensor>,
}

/// Consecutive layers of a model.
pub struct Chunk {
    /// Number of the first one within the whole model.
    pub first: usize,
    /// The layers, without the head.
    pub layers: Vec<Box<dyn Layer>>,
    /// The last layer of the whole model, if the chunk has that layer.
    pub head: Option<Box<dyn LossHead>>,
}

impl Chunk {
    /// Number of the last layer within the whole model; the head counts.
    pub fn last(&self) -> usize {
        self.first + self.layers.len() + usize::from(self.head.is_some()) - 1
    }
}

/// A model, or one pipeline stage's layers. The first layer takes inputs, the last computes losses.
pub struct Model {
    /// The layers, in the order of a forward.
    pub chunks: Vec<Chunk>,
    /// The values that pass from any layer to the next; `None` if such values differ from layer to layer.
    pub residual: Option<Residual>,
    /// The type of a microbatch's inputs and targets.
    pub values: DType,
    /// Whether training drops some values, and so needs records of samples.
    pub drops: bool,
    /// Layers ask which tokens are padding.
    pub asks_padding: bool,
    /// The number of tokens beyond the next one that training predicts, and needs as inputs and as targets.
    pub further_tokens: usize,
    /// The biases of routers that every step updates.
    pub selection_biases: Vec<SelectionBias>,
}

/// The values that pass from any layer to the next.
#[derive(Clone, Copy, Debug)]
pub struct Residual {
    /// Values of a token.
    pub width: usize,
    /// The type of the values.
    pub dtype: DType,
    /// The rows that this rank has.
    pub rows: Place,
}

impl Residual {
    /// The shape of a microbatch's.
    pub(crate) fn shape(&self, sizes: BatchSizes) -> Shape {
        sizes.rows(self.rows, self.width)
    }
}

/// The blocks with experts of a model.
#[derive(Clone, Debug)]
pub struct ExpertBlocks {
    /// The blocks' numbers in the whole model.
    pub blocks: Vec<usize>,
    /// Experts of each.
    pub experts: usize,
    /// Choices beyond a capacity are dropped, and counted.
    pub drops: bool,
    /// The ranks over which a loss sums loads, if one does.
    pub loads_over: Option<Axis>,
    /// Whether ranks exchange rows of experts, within a budget.
    pub has_row_budget: bool,
}

/// Builds a model's layers over the model's parameters, once the parameters have memory.
pub type Build = dyn Fn(&Params, StepTensors) -> Model;

/// A model before memory is allocated: the parameters to allocate, and how to build the layers over them.
pub struct Architecture {
    /// The parameters of this rank, in layer order.
    pub specs: Vec<ParamSpec>,
    /// Names of the parameters that other stages have.
    pub elsewhere: Vec<String>,
    /// The layers of this rank.
    pub layers: StageLayers,
    /// The rank's place in the mesh, and the rank's communicators.
    pub ranks: Rc<Ranks>,
    /// The modules of each layer of the whole model; empty where layers have none.
    pub modules: Vec<Vec<GraphModule>>,
    /// The last layer reads the table of the first.
    pub shares_table: bool,
    /// Angles of rotary positions, which layers read as [`StepTensors::rotary`].
    pub rotary: RotaryTables<RotaryTable>,
    /// The loss of pairs of answers; `None` if the loss is of targets.
    pub preference: Option<Preference>,
    /// The terms of the loss, the same on all ranks. The first is [`LossTerm::OF_TARGETS`]; training adds the others to
    /// it.
    pub loss_terms: Vec<LossTerm>,
    /// The blocks with experts of the whole model; `None` if the model has none.
    pub experts: Option<ExpertBlocks>,
    /// Whether a layer's weight gradients may be computed next to the backwards of earlier layers, unless layers have
    /// separate graphs or gradients are summed over ranks. Their factors stay in memory until the microbatch's
    /// backward ends. No backward may write them.
    pub gradients_outlive_layers: bool,
    /// The places of a sample's inputs and targets.
    pub sample: SampleRow,
    /// A sample has no more tokens.
    pub max_seq_len: usize,
    /// Builds the layers.
    pub build: Box<Build>,
}

impl Architecture {
    /// The same model with frozen parameters, chosen by name; see [`ParamSpec::frozen`].
    pub fn freeze(mut self, is_frozen: impl Fn(&str) -> bool) -> Architecture {
        self.specs.iter_mut().for_each(|spec| spec.frozen |= is_frozen(&spec.name));
        self
    }

    /// The same model, but frozen weights of blocks lie as codes; see [`ParamSpec::codes`].
    pub fn frozen_as_codes(mut self, form: CodeForm) -> Architecture {
        self.specs.iter_mut().for_each(|spec| spec.codes = (spec.frozen && spec.is_block_weight).then_some(form));
        self
    }

    /// The same model on samples with inputs and targets elsewhere in a row.
    pub fn with_sample(self, sample: SampleRow) -> Architecture {
        Architecture { sample, ..self }
    }
}
