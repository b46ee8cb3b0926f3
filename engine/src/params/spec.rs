//! The declaration of a parameter by the parameter's model.

use std::ops::Range;

use device::fnv1a;
use device::ops::{CodeForm, Distribution, FirstValues};
use device::{DType, Home, Shape, Tensor};
use parallel::{Axes, Ranks};

use super::flat_layout::TURNS;
use super::masters::MasterForm;
use super::sharding::{Division, Sharding};
use super::slab::Slab;
use super::spread::{Part, Spread, fill};
use crate::fp8::Fp8;

/// The first values of a parameter. They are a function of (seed, name, element), whatever the parallel layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// The same value everywhere.
    Constant(f32),
    /// Normal with this standard deviation.
    Normal(f32),
    /// Uniform between minus this bound and the bound.
    Uniform(f32),
}

/// The copy of a tied parameter that a stage has. The first and the last stage of a pipeline each have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiedCopy {
    /// The first stage's copy. It is counted in the gradient norm, and saved in checkpoints.
    Primary,
    /// The last stage's copy.
    Replica,
}

/// A parameter in a model's declaration.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// The parameter's name, as in Hugging Face checkpoints if such checkpoints have the parameter.
    pub name: String,
    /// The parameter's stored shape on this rank. Linear weights are `(out features, in features)`.
    pub shape: Shape,
    /// The number of real rows stored here. A padded vocabulary has more rows; they stay zero.
    pub rows: usize,
    /// The sizes of the whole parameter, without padding.
    pub whole: Vec<usize>,
    /// The parameter's spread over the ranks.
    pub spread: Spread,
    /// The memory that master weights and optimizer state lie in, if separate from the weights that layers read.
    pub state_home: Home,
    /// The form of the parameter's master weights.
    pub master_form: MasterForm,
    /// The places in the whole parameter of the values stored here.
    pub slabs: Vec<Slab>,
    /// The type of the weights that layers read: f32 or bf16.
    pub dtype: DType,
    /// The type of the parameter's gradient, `main_grad`: f32, or bf16 for a weight of a block.
    pub grad_type: DType,
    /// The parameter's first values.
    pub init: Init,
    /// The memory that ranks with other tokens divide.
    pub sharding: Sharding,
    /// The way in which ranks divide the parameter; without meaning if the parameter is frozen.
    pub division: Division,
    /// The number of buffers that layers take turns in, if ranks divide weights or gradients.
    pub turns: usize,
    /// The layer that completes the gradient in backward.
    pub layer: usize,
    /// Whether backward always adds to the parameter's gradient and never overwrites, so the gradient is set to 0 in
    /// every step. Embedding tables are like this.
    pub sparse: bool,
    /// The parameter is the weight of a linear layer in a block. Each of its parts packs matrices: see [`Part::rows`].
    pub is_block_weight: bool,
    /// The share of the parameter that a token is multiplied with: 1, or of all experts those that a token passes.
    pub share_per_token: f64,
    /// Layers read f32 weights, whatever the model's precision.
    pub always_f32: bool,
    /// The parameter's products have 8-bit factors, by this recipe.
    pub fp8: Option<Fp8>,
    /// Another stage has a copy too. The gradients of both copies are summed, and both stages make the same update.
    pub tied: Option<TiedCopy>,
    /// The parameter is frozen: it has no gradient, no master weights and no optimizer state. Gradients pass through
    /// its layer to the layers before.
    pub frozen: bool,
    /// Whether the parameter is whole on every rank, because the step writes the parameter.
    pub stays_whole: bool,
    /// The form of the codes in memory, if the parameter's values lie as codes: layers take turns in buffers with the
    /// values. It is frozen then, and its rows, as this rank stores them, have a multiple of
    /// [`CODE_BLOCK`](device::ops::CODE_BLOCK) values.
    pub codes: Option<CodeForm>,
}

impl ParamSpec {
    /// An f32 parameter that is stored whole.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>, init: Init, layer: usize) -> ParamSpec {
        let shape = shape.into();
        ParamSpec {
            name: name.into(),
            shape,
            rows: shape.sizes()[0],
            whole: shape.sizes().to_vec(),
            spread: Spread::whole(shape.sizes()[0]),
            state_home: Home::Device,
            master_form: MasterForm::Whole,
            grad_type: DType::F32,
            slabs: vec![Slab { offset: vec![0; shape.sizes().len()], sizes: shape.sizes().to_vec(), start: 0 }],
            dtype: DType::F32,
            init,
            sharding: Sharding::Nothing,
            division: Division::Elements,
            turns: TURNS,
            layer,
            sparse: false,
            is_block_weight: false,
            share_per_token: 1.0,
            always_f32: false,
            fp8: None,
            tied: None,
            frozen: false,
            stays_whole: false,
            codes: None,
        }
    }

    /// The same parameter, with only the first `rows` rows real. The others are padding. It is stored whole.
    pub fn with_rows(mut self, rows: usize) -> ParamSpec {
        self.whole[0] = rows;
        self.slabs[0].sizes[0] = rows;
        ParamSpec { rows, ..self }
    }

    /// The share of the parameter that one of the ranks stores, if the parameter lies in `parts`. It was
    /// stored whole.
    pub fn lying_in(self, ranks: &Ranks, parts: Vec<Part>) -> ParamSpec {
        let spread = Spread { parts, ..self.spread };
        let shape = Shape::new(&spread.stored_sizes(ranks, self.shape.sizes()));
        let slabs = spread.slabs(ranks, &self.whole);
        let row: usize = shape.sizes()[1..].iter().product();
        let rows = slabs.iter().map(Slab::elements).sum::<usize>() / row.max(1);
        ParamSpec { shape, rows, slabs, spread, ..self }
    }

    /// The same parameter, but each rank of `axes` computes a partial sum of the gradient.
    pub fn partial_over(mut self, axes: Axes) -> ParamSpec {
        self.spread.parts.iter_mut().for_each(|part| part.partial = part.partial | axes);
        self
    }

    /// The same parameter, with masters and state divided over the ranks of `over` that the gradient is summed over. A
    /// frozen one has neither; its weights may be divided.
    pub fn resting(mut self, ranks: &Ranks, over: Axes) -> ParamSpec {
        let divides_nothing = self.frozen && self.sharding < Sharding::Weights;
        self.spread.rest = if divides_nothing { Axes::NONE } else { self.spread.sums(ranks) & over };
        self
    }

    /// The stored elements of each part.
    pub fn stored_parts(&self, ranks: &Ranks) -> Vec<Range<usize>> {
        let row: usize = self.shape.sizes()[1..].iter().product();
        self.spread.stored_rows(ranks).into_iter().map(|rows| rows.start * row..rows.end * row).collect()
    }

    /// The stored elements of which no earlier rank in a group has a copy. Ranks that divide the parameter at rest all
    /// have them: of these each counts what it owns.
    pub(super) fn counted(&self, ranks: &Ranks, group: Axes) -> Vec<Range<usize>> {
        let first = |part: &Part| ranks.place(group - part.cut_over() - self.spread.rest).is_first();
        let mut counted: Vec<Range<usize>> = Vec::new();
        for (_, range) in self.spread.parts.iter().zip(self.stored_parts(ranks)).filter(|(part, _)| first(part)) {
            match counted.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => counted.push(range),
            }
        }
        if self.tied == Some(TiedCopy::Replica) {
            counted.clear();
        }
        counted
    }

    /// The operation that gives a slab of the parameter the slab's first values: `output`, and `rounded` if the slab
    /// has a copy in bf16. The slab is whole along all axes but the first two, or has one entry along the axes before
    /// the one that is cut.
    pub(super) fn init_slab(&self, slab: &Slab, seed: u64, output: Tensor, rounded: Option<Tensor>) -> FirstValues {
        let distribution = match self.init {
            Init::Constant(value) => Distribution::Constant(value),
            Init::Normal(std) => Distribution::Normal(std),
            Init::Uniform(bound) => Distribution::Uniform(bound),
        };
        let first = slab.offset.iter().zip(&self.whole).fold(0, |first, (offset, size)| first * size + offset) as u64;
        let [row, pitch] = [&slab.sizes, &self.whole].map(|sizes| sizes[1..].iter().product::<usize>());
        let stream = fnv1a(self.name.bytes());
        FirstValues { output, rounded, distribution, seed, stream, first, row, pitch }
    }

    /// The values stored here, with 0 for padding. `value` gives an element of the whole parameter by its index.
    pub fn stored_values(&self, value: impl Fn(usize) -> f32 + Send + Sync) -> Vec<f32> {
        self.stored_values_in(0..self.shape.elements(), value)
    }

    /// The stored values that lie in `range`; see [`ParamSpec::stored_values`].
    pub fn stored_values_in(&self, range: Range<usize>, value: impl Fn(usize) -> f32 + Send + Sync) -> Vec<f32> {
        fill(&self.whole, &self.slabs, range, value)
    }

    /// Whether the parameter has two axes or more. Biases and the gains of norms have one.
    pub fn is_matrix(&self) -> bool {
        self.shape.sizes().len() >= 2
    }
}
