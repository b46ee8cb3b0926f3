//! A transformer block: branches of the residual stream, each a norm and a part such as attention or a feed-forward
//! layer.
//!
//! The residual adds happen inside the norms: a block hands on the residual stream, and the tensor that is still to be
//! added to it.
//!
//! To add a kind of part: write a file that implements [`PartSpec`] and [`BlockPart`], and name it in [`parts`]. If it
//! is a module of its own, also give it a [`GraphModule`] here. No other file lists the kinds.

use device::Tensor;
use graph_manager::Result;

use super::branch::{Branch, SavedBranch};
use super::shape::GptShape;
use crate::graph_options::GraphModule;
use crate::hooks::after_module;
use crate::model::attention::attended::Attended;
use crate::model::attention::attention;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::feed_forward::feed_forward;
use crate::model::layer::{Layer, Saved};
use crate::model::norm::{NormSpec, NormSums};
use crate::model::part::PartSpec;
use crate::model::sequence::Hidden;
use crate::model::token_cost::TokenCost;
use crate::params::ParamSpec;
use crate::step_policy::StepContext;

/// A part of a block, with the part's norms, before memory is allocated.
struct BranchSpec<'s> {
    module: GraphModule,
    part: Box<dyn PartSpec>,
    /// The norms before and after the part, if blocks have such norms.
    norms: [Option<NormSpec<'s>>; 2],
}

impl GraphModule {
    /// The first layer.
    pub const EMBEDDING: GraphModule = GraphModule("embedding");
    /// A block's attention and the attention's norms.
    pub const ATTENTION: GraphModule = GraphModule("attention");
    /// A block's dense feed-forward layer and the layer's norms.
    pub const FEED_FORWARD: GraphModule = GraphModule("mlp");
    /// A block's layer of experts and the layer's norms.
    pub const EXPERTS: GraphModule = GraphModule("moe");
    /// The first half of a layer of experts: the norm before it, the router and the shared expert.
    pub const ROUTER: GraphModule = GraphModule("moe_router");
    /// The order of rows by expert, as a part of that half.
    pub const ROW_ORDER: GraphModule = GraphModule("moe_preprocess");
    /// The last layer.
    pub const HEAD: GraphModule = GraphModule("head");

    /// The words of all modules, in the order of a model.
    pub const WORDS: &'static [&'static str] = &[
        GraphModule::EMBEDDING.0,
        GraphModule::ATTENTION.0,
        GraphModule::FEED_FORWARD.0,
        GraphModule::EXPERTS.0,
        GraphModule::ROUTER.0,
        GraphModule::ROW_ORDER.0,
        GraphModule::HEAD.0,
    ];

    /// The whole module that the module is a part of: itself, unless it names a part of a layer of experts.
    pub fn whole(self) -> GraphModule {
        match self {
            GraphModule::ROUTER | GraphModule::ROW_ORDER => GraphModule::EXPERTS,
            whole => whole,
        }
    }
}

/// The parts of a block in order. Blocks may differ: `block` is its number in the whole model.
fn parts(shape: &GptShape, block: usize) -> Vec<BranchSpec<'_>> {
    let branch = |module, part: Box<dyn PartSpec>, before: &str, after: &str| {
        let norm = |name: &str| NormSpec::new(format!("h.{block}.{name}"), shape);
        let placement = shape.norm_placement;
        let norms = [placement.is_before().then(|| norm(before)), placement.is_after().then(|| norm(after))];
        BranchSpec { module, part, norms }
    };
    let attention = attention(shape).map(|part| branch(GraphModule::ATTENTION, part, "ln_1", "post_ln_1"));
    let module = match shape.block_experts(block) {
        Some(_) => GraphModule::EXPERTS,
        None => GraphModule::FEED_FORWARD,
    };
    let feed_forward = branch(module, feed_forward(shape, block), "ln_2", "post_ln_2");
    attention.into_iter().chain([feed_forward]).collect()
}

/// The modules that a block is made of, in order.
pub(crate) fn block_modules(shape: &GptShape, block: usize) -> Vec<GraphModule> {
    parts(shape, block).into_iter().map(|branch| branch.module).collect()
}

/// The parameters that this rank has of a block: those of all parts, then those of all norms. `layer` is the layer that
/// they belong to.
pub(crate) fn block_params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    let parts = parts(shape.shape, block);
    let of_parts = parts.iter().flat_map(|branch| branch.part.params(shape, block, layer));
    let norms = parts.iter().flat_map(|branch| &branch.norms).flatten();
    let of_norms = norms.flat_map(|norm| norm.params(shape.parallel, layer));
    of_parts.chain(of_norms).collect()
}

/// The cost of a token in a block, on all ranks together, in samples of so many tokens.
pub(crate) fn block_cost(shape: &GptShape, block: usize, tokens_per_sample: usize) -> TokenCost {
    let norms = |branch: &BranchSpec<'_>| branch.norms.iter().flatten().map(NormSpec::cost).sum::<TokenCost>();
    parts(shape, block).iter().map(|branch| norms(branch) + branch.part.cost(shape, block, tokens_per_sample)).sum()
}

/// A transformer block.
pub(crate) struct Block {
    pub(crate) branches: Vec<Branch>,
}

impl Block {
    /// A block over its parameters.
    pub(crate) fn build(builder: &LayerBuilder<'_>, block: usize) -> Block {
        let mut branches: Vec<Branch> = Vec::new();
        for spec in parts(builder.of.shape, block) {
            let [norm, output_norm] = spec.norms.map(|norm| norm.map(|norm| norm.build(builder.params)));
            let mut part = spec.part.build(builder, block);
            // The norm before the part sees the gradient of the values that the part added to the stream.
            let sees_output = norm.is_some() && output_norm.is_none();
            let output_bias = if sees_output { part.leave_bias_to_norm() } else { None };
            branches.push(Branch { module: spec.module, norm, part, output_norm, output_bias });
        }
        Block { branches }
    }

    /// The residual stream before the block, as the block's first branch summed the stream. `saved` is what the forward
    /// returned.
    pub(crate) fn stream(saved: &Saved) -> Tensor {
        saved.get::<Vec<SavedBranch>>()[0].stream()
    }

    /// The output of the block's attention, if the block has attention. `saved` is what the forward returned.
    pub(crate) fn attended(&self, saved: &Saved) -> Option<Attended> {
        let saved: &Vec<SavedBranch> = saved.get();
        saved.iter().zip(&self.branches).find_map(|(saved, branch)| saved.attended(branch))
    }

    /// Runs the forward again, in backward: without attention if its output was `kept`.
    pub(crate) fn forward_again(
        &self,
        cx: &mut StepContext<'_>,
        input: Hidden,
        kept: Option<Attended>,
    ) -> Result<(Hidden, Saved)> {
        let (hidden, all) = self.branches_again(cx, &self.branches, input, kept)?;
        Ok((hidden, Saved::new(all)))
    }

    /// As [`Block::forward_again`], but only as far as backward needs, without the block's output. In the last part
    /// this saves the matrix product that computes the output.
    pub(crate) fn prepare_backward(
        &self,
        cx: &mut StepContext<'_>,
        input: Hidden,
        kept: Option<Attended>,
    ) -> Result<Saved> {
        let Some((last, others)) = self.branches.split_last() else { unreachable!("a block has branches") };
        let (hidden, mut all) = self.branches_again(cx, others, input, kept)?;
        all.push(last.prepare_backward(cx, hidden)?);
        Ok(Saved::new(all))
    }

    /// The branches' forwards once more, with attention first, if the block has attention.
    fn branches_again(
        &self,
        cx: &mut StepContext<'_>,
        branches: &[Branch],
        input: Hidden,
        mut kept: Option<Attended>,
    ) -> Result<(Hidden, Vec<SavedBranch>)> {
        let (mut hidden, mut all) = (input, Vec::new());
        for branch in branches {
            let (output, saved) = branch.forward(cx, hidden, kept.take())?;
            all.push(saved);
            hidden = output;
        }
        Ok((hidden, all))
    }
}

impl Layer for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let (mut hidden, mut all) = (input, Vec::new());
        for branch in &self.branches {
            let (output, saved) = branch.forward_in_regions(cx, hidden)?;
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
            grad = branch.backward_in_regions(cx, saved, grad, &mut sums)?;
        }
        sums.add_up(cx)?;
        Ok(grad)
    }

    fn for_backward(&self, saved: &Saved) -> Vec<Tensor> {
        let saved: &Vec<SavedBranch> = saved.get();
        saved.iter().zip(&self.branches).flat_map(|(saved, branch)| saved.for_backward(branch)).collect()
    }

    fn weight_gradient_regions(&self, cx: &mut StepContext<'_>) -> Result<()> {
        self.branches.iter().rev().try_for_each(|branch| branch.weight_gradient_regions(cx))
    }
}
