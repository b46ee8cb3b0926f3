//! Sinks: a learnt score for each head that takes part in the softmax and has no value (gpt-oss).
//!
//! Attention is computed without them, and they join its results: so they go with every kernel, with keys that travel
//! round, and with heads that ranks exchange.

use device::ops::{AddSinks, BiasGrad, KeyPart, SinkGradients};
use device::{DType, Tensor};
use graph_manager::Result;

use super::attended::Attended;
use super::heads::HeadExchange;
use crate::microbatch::adds_to_gradients;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::tensor_parallel::Packed;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

fn name(block: usize) -> String {
    format!("h.{block}.attn.sinks")
}

/// The parameter, `(heads)`, in f32 whatever the model's precision; on each rank those of its own heads.
pub(super) fn params(of: &ShardedShape<'_>, block: usize, layer: usize) -> Option<ParamSpec> {
    let shape = of.shape;
    let whole = || ParamSpec::new(name(block), [shape.heads], shape.matrix_init(), layer);
    let spec = |whole| of.parallel.rows(ParamSpec { always_f32: true, ..whole }, &[Packed::channels(shape.heads)]);
    shape.attention.has_sinks().then(|| spec(whole()))
}

/// The sinks of this rank's heads.
pub(super) struct Sinks(Param);

impl Sinks {
    /// The sinks of a block over their parameter; `None` if it has none.
    pub(super) fn build(builder: &LayerBuilder<'_>, block: usize) -> Option<Sinks> {
        builder.of.shape.attention.has_sinks().then(|| Sinks(builder.params.get(&name(block))))
    }

    /// `(heads)`, f32.
    pub(super) fn of_all(&self) -> Tensor {
        self.0.weight
    }

    /// Those of the heads that a rank has in an exchange.
    fn of_part(&self, exchange: &HeadExchange) -> Tensor {
        let own = self.0.weight.elements() / exchange.ranks;
        self.0.weight.view(exchange.rank * own, [own])
    }

    /// Joins the sinks to attention over all keys.
    pub(super) fn join(&self, cx: &StepContext<'_>, attended: Attended, by_heads: Option<&HeadExchange>) -> Result<()> {
        let sinks = by_heads.map_or(self.0.weight, |exchange| self.of_part(exchange));
        cx.run(AddSinks { attended: part(attended), sinks })
    }

    /// Computes the gradient, unless the sinks are frozen. The backward of attention reads the same tensors.
    pub(super) fn gradient(&self, cx: &mut StepContext<'_>, attended: Attended, grad_context: Tensor) -> Result<()> {
        let Some(grad) = self.0.grad else { return Ok(()) };
        let summands = self.summands(cx, attended, grad_context, self.0.weight)?;
        sum(cx, summands, grad)
    }

    /// As [`Sinks::gradient`], of ranks that exchange heads: from all tokens of some heads. Sums are over some tokens of
    /// all heads, as of other parameters.
    pub(super) fn gradient_by_heads(
        &self,
        cx: &mut StepContext<'_>,
        exchange: &HeadExchange,
        attended: Attended,
        grad_context: Tensor,
    ) -> Result<()> {
        let Some(grad) = self.0.grad else { return Ok(()) };
        let whole = self.summands(cx, attended, grad_context, self.of_part(exchange))?;
        let &[batch, seq, _] = whole.shape.sizes() else { unreachable!("as they were made") };
        let heads = self.0.weight.elements();
        let summands = cx.tensor("grad_sink_summands_here", [batch, seq / exchange.ranks, heads], DType::F32)?;
        exchange.to_tokens(cx, whole, summands, &[heads])?;
        sum(cx, summands, grad)
    }

    fn summands(
        &self,
        cx: &mut StepContext<'_>,
        attended: Attended,
        grad_output: Tensor,
        sinks: Tensor,
    ) -> Result<Tensor> {
        let &[batch, heads, seq] = attended.stats.shape.sizes() else {
            unreachable!("statistics have three dimensions")
        };
        let summands = cx.tensor("grad_sink_summands", [batch, seq, heads], DType::F32)?;
        cx.run(SinkGradients { attended: part(attended), grad_output, sinks, summands })?;
        Ok(summands)
    }
}

fn part(Attended { context, stats }: Attended) -> KeyPart {
    KeyPart { output: context, stats }
}

fn sum(cx: &StepContext<'_>, summands: Tensor, grad: Tensor) -> Result<()> {
    cx.run(BiasGrad { grad_output: summands, grad_bias: grad, accumulate: adds_to_gradients(cx) })
}
