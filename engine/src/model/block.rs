//! A transformer block: branches of the residual stream, each a norm and a part such as attention or a feed-forward layer.
//!
//! The residual adds happen inside the norms: a block hands on the residual stream and what is still to be added to it.
//!
//! To add a kind of part: write a file that implements [`PartSpec`] and [`BlockPart`], and name it in [`parts`], the only
//! place that knows which kinds there are.

use device::Tensor;
use graph_manager::Result;

use super::attention::CausalAttentionSpec;
use super::branch::{Branch, SavedBranch};
use super::builder::{LayerBuilder, ShardedShape};
use super::hidden::Hidden;
use super::layer::Layer;
use super::norm::NormSpec;
use super::norm_sums::NormSums;
use super::part::PartSpec;
use super::saved::Saved;
use super::shape::GptShape;
use super::token_cost::TokenCost;
use crate::graph_options::GraphModule;
use crate::hooks::after_module;
use crate::params::ParamSpec;
use crate::step_policy::StepContext;

/// A part of a block, before it has memory.
struct BranchSpec {
    module: GraphModule,
    /// The norm before the part, if blocks have it.
    norm: &'static str,
    part: Box<dyn PartSpec>,
    /// The norm after the part, if blocks have it.
    output_norm: &'static str,
}

impl BranchSpec {
    /// The norms that a block has before and after the part.
    fn norms<'s>(&self, shape: &'s GptShape, block: usize) -> [Option<NormSpec<'s>>; 2] {
        let norm = |name: &str| NormSpec::new(format!("h.{block}.{name}"), shape);
        let placement = shape.norm_placement;
        [placement.is_before().then(|| norm(self.norm)), placement.is_after().then(|| norm(self.output_norm))]
    }
}

/// The parts of a block in order.
fn parts(shape: &GptShape) -> Vec<BranchSpec> {
    let mut parts = Vec::new();
    if shape.attention {
        let part = Box::new(CausalAttentionSpec);
        parts.push(BranchSpec { module: GraphModule::Attention, norm: "ln_1", part, output_norm: "post_ln_1" });
    }
    let part = shape.feed_forward.spec();
    parts.push(BranchSpec { module: GraphModule::FeedForward, norm: "ln_2", part, output_norm: "post_ln_2" });
    parts
}

/// The modules that a block is made of, in order.
pub(crate) fn block_modules(shape: &GptShape) -> Vec<GraphModule> {
    parts(shape).into_iter().map(|branch| branch.module).collect()
}

/// The parameters that this rank has of a block: those of all parts, then those of all norms. `layer` is the layer that they
/// belong to.
pub(crate) fn block_params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    let parts = parts(shape.shape);
    let of_parts = parts.iter().flat_map(|branch| branch.part.params(shape, block, layer));
    let norms = parts.iter().flat_map(|branch| branch.norms(shape.shape, block)).flatten();
    let of_norms = norms.flat_map(|norm| norm.params(shape.parallel, layer));
    of_parts.chain(of_norms).collect()
}

/// What a token costs in a block, on all ranks together.
pub(crate) fn block_cost(shape: &GptShape, block: usize) -> TokenCost {
    let norms =
        |branch: &BranchSpec| branch.norms(shape, block).iter().flatten().map(NormSpec::cost).sum::<TokenCost>();
    parts(shape).iter().map(|branch| norms(branch) + branch.part.cost(shape, block)).sum()
}

/// A transformer block.
pub(crate) struct Block {
    pub(crate) branches: Vec<Branch>,
}

impl Block {
    /// A block over its parameters.
    pub(crate) fn build(builder: &LayerBuilder<'_>, block: usize) -> Block {
        let mut branches: Vec<Branch> = Vec::new();
        for spec in parts(builder.of.shape) {
            let norms = spec.norms(builder.of.shape, block);
            let [norm, output_norm] = norms.map(|norm| norm.map(|norm| norm.build(builder.params)));
            let mut part = spec.part.build(builder, block);
            // The norm before the part sees the gradient of what the part added to the stream.
            let sees_output = norm.is_some() && output_norm.is_none();
            let output_bias = if sees_output { part.leave_bias_to_norm() } else { None };
            branches.push(Branch { module: spec.module, norm, part, output_norm, output_bias });
        }
        Block { branches }
    }

    /// Runs the forward as far as backward needs it, without the block's output. In the last part this saves the matrix
    /// product that computes the output.
    pub(crate) fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Saved> {
        let (mut hidden, mut all) = (input, Vec::new());
        for (at, branch) in self.branches.iter().enumerate() {
            if at + 1 < self.branches.len() {
                let (output, saved) = branch.forward(cx, hidden)?;
                all.push(saved);
                hidden = output;
            } else {
                all.push(branch.prepare_backward(cx, hidden)?);
            }
        }
        Ok(Saved::new(all))
    }
}

impl Layer for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let (mut hidden, mut all) = (input, Vec::new());
        for branch in &self.branches {
            let (output, saved) = branch.within(cx, hidden, |cx, hidden| branch.forward(cx, hidden))?;
            after_module(cx, branch.module, output)?;
            all.push(saved);
            hidden = output;
        }
        Ok((hidden, Saved::new(all)))
    }

    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved, grad: Tensor) -> Result<Tensor> {
        let saved: &Vec<SavedBranch> = saved.get();
        let (mut grad, mut sums) = (grad, NormSums::default());
        for (branch, saved) in self.branches.iter().zip(saved).rev() {
            let has_region = branch.region(cx).is_some();
            grad = branch.within(cx, grad, |cx, grad| {
                let grad = branch.backward(cx, saved, grad, &mut sums)?;
                if has_region {
                    // The region may have a graph of its own, and nothing of it may be done elsewhere.
                    std::mem::take(&mut sums).add_up(cx)?;
                }
                Ok(grad)
            })?;
        }
        sums.add_up(cx)?;
        Ok(grad)
    }

    fn weight_gradient_regions(&self, cx: &mut StepContext<'_>) -> Result<()> {
        self.branches.iter().rev().try_for_each(|branch| branch.within(cx, (), |_, ()| Ok(())))
    }
}
