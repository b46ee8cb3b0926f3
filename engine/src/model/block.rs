//! A transformer block: branches of the residual stream, each a norm and a part such as attention or a feed-forward layer.
//!
//! The residual adds happen inside the norms: a block hands on the residual stream and what is still to be added to it.
//!
//! To add a kind of part: write a file that implements [`PartSpec`] and [`BlockPart`], and name it in [`parts`], the only
//! place that knows which kinds there are.

use device::Tensor;
use graph_manager::Result;

use super::attention::CausalAttentionSpec;
use super::builder::{LayerBuilder, ShardedShape};
use super::layer::{Hidden, Layer};
use super::norm::{NormLayer, NormSpec, Normed, SavedNorm};
use super::part::{BlockPart, DecodeStep, PartSpec, Saved, SavedInput};
use super::pending::PendingWeightGradients;
use super::shape::GptShape;
use super::token_cost::TokenCost;
use crate::graph_options::GraphModule;
use crate::hooks::after_module;
use crate::params::{Param, ParamSpec};
use crate::regions::Region;
use crate::step_policy::StepContext;

/// A part of a block, before it has memory.
struct BranchSpec {
    module: GraphModule,
    norm: &'static str,
    part: Box<dyn PartSpec>,
}

/// The parts of a block in order, each with the name of its norm.
fn parts(shape: &GptShape) -> Vec<BranchSpec> {
    let mut parts = Vec::new();
    if shape.attention {
        parts.push(BranchSpec { module: GraphModule::Attention, norm: "ln_1", part: Box::new(CausalAttentionSpec) });
    }
    parts.push(BranchSpec { module: GraphModule::FeedForward, norm: "ln_2", part: shape.feed_forward.spec() });
    parts
}

/// The modules that a block is made of, in order.
pub(crate) fn block_modules(shape: &GptShape) -> Vec<GraphModule> {
    parts(shape).into_iter().map(|branch| branch.module).collect()
}

/// The norm of that name in a block.
fn norm<'s>(shape: &'s GptShape, block: usize, name: &str) -> NormSpec<'s> {
    NormSpec::new(format!("h.{block}.{name}"), shape)
}

/// The parameters that this rank has of a block: those of all parts, then those of all norms. `layer` is the layer that they
/// belong to.
pub(crate) fn block_params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    let parts = parts(shape.shape);
    let of_parts = parts.iter().flat_map(|branch| branch.part.params(shape, block, layer));
    let of_norms = parts.iter().flat_map(|branch| norm(shape.shape, block, branch.norm).params(shape.parallel, layer));
    of_parts.chain(of_norms).collect()
}

/// What a token costs in a block, on all ranks together.
pub(crate) fn block_cost(shape: &GptShape, block: usize) -> TokenCost {
    parts(shape).iter().map(|branch| norm(shape, block, branch.norm).cost() + branch.part.cost(shape, block)).sum()
}

/// A transformer block.
pub(crate) struct Block {
    pub(crate) branches: Vec<Branch>,
}

/// A norm and the part that it feeds. What the part computes is added to the residual stream by the next norm.
pub(crate) struct Branch {
    module: GraphModule,
    /// Its number over the whole model. What it saves is filed under this number.
    number: usize,
    norm: NormLayer,
    pub(crate) part: Box<dyn BlockPart>,
    /// The part's output bias, if the norm sums its gradient.
    output_bias: Option<Param>,
}

/// What a branch saves for its backward.
type SavedBranch = (SavedNorm, Saved);

impl Block {
    /// A block over its parameters.
    pub(crate) fn build(builder: &LayerBuilder<'_>, block: usize) -> Block {
        let mut branches: Vec<Branch> = Vec::new();
        let parts = parts(builder.of.shape);
        let first = block * parts.len();
        for (at, BranchSpec { module, norm: name, part }) in parts.into_iter().enumerate() {
            let norm = norm(builder.of.shape, block, name).build(builder.params);
            let mut part = part.build(builder, block);
            let output_bias = part.leave_bias_to_norm();
            branches.push(Branch { module, number: first + at, norm, part, output_bias });
        }
        Block { branches }
    }

    /// Runs the forward as far as backward needs it, without the block's output. In the last part this saves the matrix
    /// product that computes the output.
    pub(crate) fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<()> {
        let mut hidden = input;
        for (at, branch) in self.branches.iter().enumerate() {
            if at + 1 < self.branches.len() {
                hidden = branch.forward(cx, hidden)?;
            } else {
                branch.prepare_backward(cx, hidden)?;
            }
        }
        Ok(())
    }
}

impl Layer for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let mut hidden = input;
        for branch in &self.branches {
            hidden = cx.region(branch.region(cx), hidden, |cx, hidden| branch.forward(cx, hidden))?;
            after_module(cx, branch.module, hidden)?;
        }
        Ok(hidden)
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let (mut grad, mut pending) = (grad, PendingWeightGradients::none());
        for branch in self.branches.iter().rev() {
            let region = branch.region(cx);
            let before = std::mem::replace(&mut pending, PendingWeightGradients::none());
            grad = cx.region(region, grad, |cx, grad| {
                let (grad, left) = branch.backward(cx, grad, before)?;
                if cx.current_region() == Some(region) {
                    // A replay of the next region would not run this code, so nothing may be left for it.
                    left.compute(cx)?;
                } else {
                    pending = left;
                }
                Ok(grad)
            })?;
        }
        pending.compute(cx)?;
        Ok(grad)
    }

    fn weight_gradients(&self, cx: &mut StepContext<'_>) -> Result<()> {
        for branch in self.branches.iter().rev() {
            let region = branch.region(cx);
            cx.region(region, (), |cx, ()| match cx.current_region() == Some(region) {
                true => cx.run_deferred(),
                false => Ok(()),
            })?;
        }
        // Without regions of their own, the modules' operations were deferred by the layer.
        cx.run_deferred()
    }
}

impl Branch {
    /// The module's region within the region of its layer.
    fn region(&self, cx: &StepContext<'_>) -> Region {
        match cx.current_region().and_then(|region| region.of_module(self.module)) {
            Some(region) => region,
            None => unreachable!("a block runs in a forward, backward or weight gradients of its layer"),
        }
    }

    /// The residual stream, its normed values as the part reads them, and what the norm's backward needs.
    fn normalise(&self, cx: &mut StepContext<'_>, input: &Hidden) -> Result<(Tensor, Normed, SavedNorm)> {
        if self.part.computes_input() {
            return self.norm.forward_statistics(cx, input.x, input.delta);
        }
        let (x, normed, saved) = self.norm.forward(cx, input.x, input.delta)?;
        Ok((x, Normed::Stored(normed), saved))
    }

    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let (x, normed, norm) = self.normalise(cx, &input)?;
        let (delta, saved) = self.part.forward(cx, normed, input.record)?;
        self.save(cx, (norm, saved))?;
        Ok(Hidden { x, delta: Some(delta), ..input })
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<()> {
        let (_, normed, norm) = self.normalise(cx, &input)?;
        let saved = self.part.prepare_backward(cx, normed, input.record)?;
        self.save(cx, (norm, saved))
    }

    fn save(&self, cx: &mut StepContext<'_>, saved: SavedBranch) -> Result<()> {
        cx.part(self.number, |cx| cx.save_for_backward(saved))
    }

    /// The gradient of the residual stream before the branch from `grad`, the one after it; see [`BlockPart::backward`].
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        pending: PendingWeightGradients,
    ) -> Result<(Tensor, PendingWeightGradients)> {
        let (norm, saved): SavedBranch = cx.part(self.number, |cx| cx.saved())?;
        let input = SavedInput::new(&self.norm, &norm);
        let (grad_normed, pending) = self.part.backward(cx, grad, input, &saved, pending)?;
        let grad = self.norm.backward(cx, &norm, grad_normed, Some(grad), self.output_bias)?;
        Ok((grad, pending))
    }

    /// Forward of new tokens in a model that decodes: the residual stream `(1, rows, hidden)` and what is to be added to it,
    /// before and after.
    pub(crate) fn decode(
        &self,
        cx: &mut StepContext<'_>,
        (x, delta): (Tensor, Option<Tensor>),
        step: &DecodeStep,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (x, normed, _) = self.norm.forward(cx, x, delta)?;
        Ok((x, Some(self.part.decode(cx, normed, step)?)))
    }
}
