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
use super::linear::PendingWeightGradients;
use super::norm::{NormLayer, NormSpec, SavedNorm};
use super::part::{BlockPart, DecodeStep, PartSpec, Saved, SavedInput};
use super::shape::GptShape;
use super::token_cost::TokenCost;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// The parts of a block in order, each with the name of its norm.
fn parts(shape: &GptShape) -> Vec<(&'static str, Box<dyn PartSpec>)> {
    let mut parts: Vec<(&'static str, Box<dyn PartSpec>)> = Vec::new();
    if shape.attention {
        parts.push(("ln_1", Box::new(CausalAttentionSpec)));
    }
    parts.push(("ln_2", shape.feed_forward.spec()));
    parts
}

/// The norm of that name in a block.
fn norm<'s>(shape: &'s GptShape, block: usize, name: &str) -> NormSpec<'s> {
    NormSpec::new(format!("h.{block}.{name}"), shape)
}

/// The parameters that this rank has of a block: those of all parts, then those of all norms. `layer` is the layer that they
/// belong to.
pub(crate) fn block_params(shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    let parts = parts(shape.shape);
    let of_parts = parts.iter().flat_map(|(_, part)| part.params(shape, block, layer));
    let of_norms = parts.iter().flat_map(|(name, _)| norm(shape.shape, block, name).params(shape.parallel, layer));
    of_parts.chain(of_norms).collect()
}

/// What a token costs in a block, on all ranks together.
pub(crate) fn block_cost(shape: &GptShape) -> TokenCost {
    parts(shape).iter().map(|(name, part)| norm(shape, 0, name).cost() + part.cost(shape)).sum()
}

/// A transformer block.
pub(crate) struct Block {
    pub(crate) branches: Vec<Branch>,
}

/// A norm and the part that it feeds. What the part computes is added to the residual stream by the next norm.
pub(crate) struct Branch {
    norm: NormLayer,
    pub(crate) part: Box<dyn BlockPart>,
    /// The output bias of the part before, if the norm sums its gradient.
    delta_bias: Option<Param>,
}

/// What a branch saves for its backward.
type SavedBranch = (SavedNorm, Saved);

impl Block {
    /// A block over its parameters.
    pub(crate) fn build(builder: &LayerBuilder<'_>, block: usize) -> Block {
        let mut branches: Vec<Branch> = Vec::new();
        for (name, part) in parts(builder.of.shape) {
            // The residual stream that the first norm reads is another layer's output. That layer's own backward makes the
            // gradient of its bias, because its bucket is reduced while this layer's backward runs.
            let delta_bias = branches.last_mut().and_then(|before| before.part.leave_bias_to_next_norm());
            let norm = norm(builder.of.shape, block, name).build(builder.params);
            branches.push(Branch { norm, part: part.build(builder, block), delta_bias });
        }
        Block { branches }
    }

    /// Runs the forward as far as backward needs it, without the block's output. In the last part this saves the matrix
    /// product that computes the output.
    pub(crate) fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<()> {
        let mut hidden = input;
        let mut saved: Vec<SavedBranch> = Vec::new();
        for (at, branch) in self.branches.iter().enumerate() {
            if at + 1 == self.branches.len() {
                saved.push(branch.prepare_backward(cx, hidden)?);
            } else {
                let (output, of_branch) = branch.forward(cx, hidden)?;
                hidden = output;
                saved.push(of_branch);
            }
        }
        cx.save_for_backward(saved)
    }
}

impl Layer for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let mut hidden = input;
        let mut saved: Vec<SavedBranch> = Vec::new();
        for branch in &self.branches {
            let (output, of_branch) = branch.forward(cx, hidden)?;
            hidden = output;
            saved.push(of_branch);
        }
        cx.save_for_backward(saved)?;
        Ok(hidden)
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let saved: Vec<SavedBranch> = cx.saved()?;
        let (mut grad, mut pending) = (grad, PendingWeightGradients::none());
        for (branch, saved) in self.branches.iter().zip(&saved).rev() {
            (grad, pending) = branch.backward(cx, grad, saved, pending)?;
        }
        pending.compute(cx)?;
        Ok(grad)
    }
}

impl Branch {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, SavedBranch)> {
        let (x, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let (delta, saved) = self.part.forward(cx, normed, input.record)?;
        Ok((Hidden { x, delta: Some(delta), ..input }, (norm, saved)))
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<SavedBranch> {
        let (_, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        Ok((norm, self.part.prepare_backward(cx, normed, input.record)?))
    }

    /// The gradient of the residual stream before the branch from `grad`, the one after it; see [`BlockPart::backward`].
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        (norm, saved): &SavedBranch,
        pending: PendingWeightGradients,
    ) -> Result<(Tensor, PendingWeightGradients)> {
        let input = SavedInput::new(&self.norm, norm);
        let (grad_normed, pending) = self.part.backward(cx, grad, input, saved, pending)?;
        let grad = self.norm.backward(cx, norm, grad_normed, Some(grad), self.delta_bias)?;
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
