//! Sinks: a learnt score for each head that takes part in the softmax and has no value (gpt-oss).
//!
//! Attention is computed without them, and they join its results: so they go with every kernel, with keys that travel
//! round, and with heads that ranks exchange.

use device::ops::{AddSinks, BiasGrad, KeyPart, SinkGradients};
use device::{DType, Tensor};
use graph_manager::Result;
use parallel::Place;

use super::attended::Attended;
use crate::microbatch::adds_to_gradients;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::tensor_parallel::Packed;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

fn name(block: usize) -> String {
    format!("h.{block}.attn.sinks")
}

/// The parameter of sinks, `(heads)`, in f32 whatever the model's precision; on each rank the sinks of that rank's
/// heads.
pub(super) fn params(of: &ShardedShape<'_>, block: usize, layer: usize) -> Option<ParamSpec> {
    let shape = of.shape;
    let whole = || ParamSpec::new(name(block), [shape.heads], shape.matrix_init(), layer);
    let spec = |whole| of.parallel.rows(ParamSpec { always_f32: true, ..whole }, &[Packed::channels(shape.heads)]);
    shape.attention.has_sinks().then(|| spec(whole()))
}

/// The sinks of this rank's heads.
pub(super) struct Sinks(Param);

impl Sinks {
    /// The sinks of a block over the block's parameter; `None` if the block has none.
    pub(super) fn build(builder: &LayerBuilder<'_>, block: usize) -> Option<Sinks> {
        builder.of.shape.attention.has_sinks().then(|| Sinks(builder.params.get(&name(block))))
    }

    /// `(heads)`, f32.
    pub(super) fn of_all(&self) -> Tensor {
        self.0.weight
    }

    /// `(heads / ranks)`, f32: the sinks of the heads that the rank at this place in an exchange has.
    fn of_part(&self, place: Place) -> Tensor {
        let own = self.0.weight.elements() / place.count;
        self.0.weight.view(place.index * own, [own])
    }

    /// Joins the sinks to attention over all keys, of the heads at this place in an exchange.
    pub(super) fn join(&self, cx: &StepContext<'_>, attended: Attended, place: Place) -> Result<()> {
        cx.run(AddSinks { attended: part(attended), sinks: self.of_part(place) })
    }

    /// Computes the gradient, unless the sinks are frozen. The backward of attention reads the same tensors.
    pub(super) fn gradient(&self, cx: &mut StepContext<'_>, attended: Attended, grad_context: Tensor) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        let summands = self.summands(cx, attended, grad_context, Place::ALONE)?;
        self.sum(cx, summands)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.0.grad.is_none()
    }

    /// The summands of the gradient `(batch, seq, heads)`, f32, of the heads at this place in an exchange.
    pub(super) fn summands(
        &self,
        cx: &mut StepContext<'_>,
        attended: Attended,
        grad_output: Tensor,
        place: Place,
    ) -> Result<Tensor> {
        let sinks = self.of_part(place);
        let &[batch, heads, seq] = attended.stats.shape.sizes() else {
            unreachable!("statistics have three dimensions")
        };
        let summands = cx.tensor("grad_sink_summands", [batch, seq, heads], DType::F32)?;
        cx.run(SinkGradients { attended: part(attended), grad_output, sinks, summands })?;
        Ok(summands)
    }

    /// Computes the gradient from the summands of all heads.
    pub(super) fn sum(&self, cx: &StepContext<'_>, summands: Tensor) -> Result<()> {
        let Some(grad_bias) = self.0.grad else { return Ok(()) };
        cx.run(BiasGrad { grad_output: summands, grad_bias, accumulate: adds_to_gradients(cx) })
    }
}

fn part(Attended { context, stats }: Attended) -> KeyPart {
    KeyPart { output: context, stats }
}
