//! A linear layer before it has memory.

use super::Linear;
use super::adapter::AdapterSpec;
use super::operands::gathers_8_bits;
use crate::fp8::Fp8;
use crate::model::builder::LayerBuilder;
use crate::model::tensor_parallel::{Packed, TensorParallel};
use crate::model::token_cost::TokenCost;
use crate::params::{Init, ParamSpec, Params};
use crate::precision::Precision;

/// A linear layer before it has memory: it declares the parameters, and builds the layer over them.
pub(crate) struct LinearSpec {
    /// The beginning of the names of the layer's parameters.
    name: String,
    input: usize,
    output: usize,
    init: Init,
    bias: bool,
    split: Split,
    fp8: Option<Fp8>,
    adapters: Option<AdapterSpec>,
}

/// How the ranks of a tensor-parallel group share a linear layer.
enum Split {
    /// By outputs, the bias too. The output packs these groups, such as queries, keys and values; a rank has an equal
    /// part of each.
    Columns(Vec<Packed>),
    /// By inputs. Each rank has the whole bias, and the ranks' results are summed.
    Rows,
}

impl LinearSpec {
    /// A linear layer whose outputs the ranks divide. The output packs these `groups`.
    pub(crate) fn column_parallel(
        name: String,
        input: usize,
        groups: Vec<Packed>,
        init: Init,
        bias: bool,
    ) -> LinearSpec {
        let output = groups.iter().map(Packed::size).sum();
        let split = Split::Columns(groups);
        LinearSpec { name, input, output, init, bias, split, fp8: None, adapters: None }
    }

    /// A linear layer whose inputs the ranks divide.
    pub(crate) fn row_parallel(name: String, input: usize, output: usize, init: Init, bias: bool) -> LinearSpec {
        LinearSpec { name, input, output, init, bias, split: Split::Rows, fp8: None, adapters: None }
    }

    /// The same layer. Its products have 8-bit factors if there is a recipe for them.
    pub(crate) fn in_8_bits(self, fp8: Option<Fp8>) -> LinearSpec {
        LinearSpec { fp8, ..self }
    }

    /// The same layer with `adapters`.
    pub(crate) fn with_adapters(self, adapters: Option<AdapterSpec>) -> LinearSpec {
        LinearSpec { adapters, ..self }
    }

    /// The groups that the output packs, and whether the ranks split the inputs instead.
    fn packed(&self) -> (Vec<Packed>, bool) {
        match &self.split {
            Split::Columns(groups) => (groups.clone(), false),
            Split::Rows => (vec![Packed::channels(self.output)], true),
        }
    }

    fn weight_name(&self) -> String {
        format!("{}.weight", self.name)
    }

    fn bias_name(&self) -> String {
        format!("{}.bias", self.name)
    }

    /// This rank's parameters: weight, then bias, then those of adapters. They belong to the layer `layer`.
    pub(crate) fn params(&self, parallel: &TensorParallel, layer: usize) -> Vec<ParamSpec> {
        let weight = ParamSpec::new(self.weight_name(), [self.output, self.input], self.init, layer);
        let weight = ParamSpec { fp8: self.fp8, is_block_weight: true, ..weight };
        let bias = self.bias.then(|| ParamSpec::new(self.bias_name(), [self.output], Init::Constant(0.0), layer));
        let (weight, bias) = match &self.split {
            Split::Columns(groups) => (parallel.rows(weight, groups), bias.map(|bias| parallel.rows(bias, groups))),
            Split::Rows => {
                // Its gradient is summed when the output gradient is quantised.
                let is_partial = self.adapters.is_none() && gathers_8_bits(self.fp8, parallel);
                let bias = bias.map(|bias| if is_partial { parallel.partial(bias) } else { bias });
                (parallel.columns(weight, vec![self.output]), bias)
            }
        };
        let (packed, row_parallel) = self.packed();
        let adapters = self
            .adapters
            .iter()
            .flat_map(|adapters| adapters.params((&self.name, layer), self.input, &packed, row_parallel, parallel));
        [weight].into_iter().chain(bias).chain(adapters).collect()
    }

    /// The layer over its parameters. Its products have the formats of `precision`.
    pub(crate) fn build(&self, params: &Params, precision: Precision) -> Linear {
        let bias = self.bias.then(|| params.get(&self.bias_name()));
        let weight = params.get(&self.weight_name());
        Linear { weight, bias, bias_left_to_norm: false, precision, adapter: None }
    }

    /// The layer of a block over the layer's parameters, with adapters.
    pub(crate) fn build_in_block(&self, builder: &LayerBuilder<'_>, block: usize) -> Linear {
        let (packed, row_parallel) = self.packed();
        let adapter = self.adapters.as_ref().map(|adapters| {
            let params = ["lora_A", "lora_B"].map(|which| builder.params.get(&format!("{}.{which}", self.name)));
            adapters.build(params, &packed, row_parallel, builder, block)
        });
        Linear { adapter, ..self.build(builder.params, builder.of.shape.precision) }
    }

    /// The cost of the whole layer: each of its three products reads or writes input and output once.
    pub(crate) fn cost(&self) -> TokenCost {
        let adapters = self.adapters.as_ref().map_or(0, |adapters| adapters.weights(self.input, &self.packed().0));
        let weights = self.input * self.output + adapters;
        TokenCost { weights, values: 3 * (self.input + self.output), ..TokenCost::default() }
    }
}
