//! A part that a user of this crate adds, as a part of blocks.

use std::sync::Arc;

use device::{Shape, Tensor};
use graph_manager::Result;

use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::gpt::GptShape;
use crate::model::layer::Saved;
use crate::model::norm::Normed;
use crate::model::own::{OwnLayer, OwnParam, OwnPart};
use crate::model::part::{BlockPart, PartSpec, SavedInput};
use crate::model::sequence::Samples;
use crate::model::token_cost::TokenCost;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// An [`OwnPart`] as a kind of part.
pub(super) struct OwnSpec(pub(super) Arc<dyn OwnPart>);

impl OwnSpec {
    fn name(block: usize, param: &OwnParam) -> String {
        format!("h.{block}.mlp.{}", param.name)
    }
}

impl PartSpec for OwnSpec {
    fn params(&self, of: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
        let declared = self.0.params(of.shape, block);
        let whole = declared
            .iter()
            .map(|param| ParamSpec::new(OwnSpec::name(block, param), Shape::new(&param.sizes), param.init, layer));
        whole.map(|spec| of.parallel.partial_of_rows(spec)).collect()
    }

    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart> {
        let declared = self.0.params(builder.of.shape, block);
        let params: Vec<Param> =
            declared.iter().map(|param| builder.params.get(&OwnSpec::name(block, param))).collect();
        Box::new(Own(self.0.build(&params, &builder.step)))
    }

    fn cost(&self, shape: &GptShape, _block: usize, _tokens_per_sample: usize) -> TokenCost {
        TokenCost { weights: self.0.multiplications(shape), values: 4 * shape.hidden, ..TokenCost::default() }
    }
}

/// An [`OwnLayer`] as a part of a block.
struct Own(Box<dyn OwnLayer>);

impl BlockPart for Own {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, _: Samples) -> Result<(Tensor, Saved)> {
        self.0.forward(cx, stored(normed))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor> {
        let input = stored(input.read(cx)?);
        self.0.backward(cx, input, saved, grad)
    }
}

/// The values that the norm before a part stores, unless the part computes normed values.
fn stored(normed: Normed) -> Tensor {
    match normed {
        Normed::Stored(normed) => normed,
        Normed::Computed(_) => unreachable!("the part does not compute its input"),
    }
}
