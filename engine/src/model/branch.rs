//! A branch of the residual stream: a norm, a part such as attention or a feed-forward layer, and a norm of what it computes.
//! Which of the two norms there are is the model's choice.

use device::Tensor;
use device::ops::{Add, QuantizeSource};
use graph_manager::{Result, TensorTree};

use super::hidden::Hidden;
use super::norm::{NormLayer, Normed, SavedNorm};
use super::norm_sums::NormSums;
use super::part::{BlockPart, DecodeStep, SavedInput};
use super::saved::Saved;
use crate::graph_options::GraphModule;
use crate::params::Param;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// A part with its norms. What the branch computes is added to the residual stream by whoever reads the stream next.
pub(crate) struct Branch {
    pub(crate) module: GraphModule,
    /// Of the residual stream, before the part; `None` if the part reads the stream itself.
    pub(crate) norm: Option<NormLayer>,
    pub(crate) part: Box<dyn BlockPart>,
    /// Of what the part computed; `None` if that is added to the stream as it is.
    pub(crate) output_norm: Option<NormLayer>,
    /// The part's output bias, if the norm before the part sums its gradient.
    pub(crate) output_bias: Option<Param>,
}

/// What a branch leaves for its backward.
pub(crate) struct SavedBranch {
    stream: SavedStream,
    part: Saved,
    output: Option<SavedNorm>,
}

/// What a branch saves of the residual stream.
#[derive(Clone, Copy)]
enum SavedStream {
    Normed(SavedNorm),
    /// As the part read it.
    AsItIs(Normed),
}

impl Branch {
    /// The module's region within the region of its layer, where it has one of its own.
    pub(crate) fn region(&self, cx: &StepContext<'_>) -> Option<Region> {
        let of_layer = cx.current_region()?;
        let (layer, _) = of_layer.place()?;
        of_layer.of_module(self.module).filter(|_| cx.policy().divides(layer))
    }

    /// Does the work of the module, in its region if it has one.
    pub(crate) fn within<'m, I: TensorTree, O>(
        &self,
        cx: &mut StepContext<'m>,
        input: I,
        work: impl FnOnce(&mut StepContext<'m>, I) -> Result<O>,
    ) -> Result<O> {
        match self.region(cx) {
            Some(region) => cx.region(region, input, work),
            None => work(cx, input),
        }
    }

    /// The residual stream, what the part reads of it, and what backward needs.
    fn read(
        &self,
        cx: &mut StepContext<'_>,
        x: Tensor,
        delta: Option<Tensor>,
    ) -> Result<(Tensor, Normed, SavedStream)> {
        let Some(norm) = &self.norm else {
            let x = add(cx, x, delta)?;
            let read = match self.part.computes_input() {
                true => Normed::Computed(QuantizeSource::Stored(x)),
                false => Normed::Stored(x),
            };
            return Ok((x, read, SavedStream::AsItIs(read)));
        };
        let (x, normed, saved) = match self.part.computes_input() {
            true => norm.forward_statistics(cx, x, delta)?,
            false => {
                let (x, normed, saved) = norm.forward(cx, x, delta)?;
                (x, Normed::Stored(normed), saved)
            }
        };
        Ok((x, normed, SavedStream::Normed(saved)))
    }

    pub(crate) fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, SavedBranch)> {
        let (x, normed, stream) = self.read(cx, input.x, input.delta)?;
        let (delta, part) = self.part.forward(cx, normed, input.samples)?;
        let (delta, output) = self.normalise_output(cx, delta)?;
        Ok((Hidden { x, delta: Some(delta), ..input }, SavedBranch { stream, part, output }))
    }

    /// What the branch adds to the residual stream, from what the part computed.
    fn normalise_output(&self, cx: &mut StepContext<'_>, delta: Tensor) -> Result<(Tensor, Option<SavedNorm>)> {
        let Some(norm) = &self.output_norm else { return Ok((delta, None)) };
        let (_, normed, saved) = norm.forward(cx, delta, None)?;
        Ok((normed, Some(saved)))
    }

    /// The forward as far as backward needs it. Only the backward of an output norm needs what the part computes.
    pub(crate) fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<SavedBranch> {
        if self.output_norm.is_some() {
            return self.forward(cx, input).map(|(_, saved)| saved);
        }
        let (_, normed, stream) = self.read(cx, input.x, input.delta)?;
        let part = self.part.prepare_backward(cx, normed, input.samples)?;
        Ok(SavedBranch { stream, part, output: None })
    }

    /// The gradient of the residual stream before the branch from `grad`, the one after it; see [`BlockPart::backward`]. The
    /// norms leave their parameter gradients to `sums`.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedBranch,
        grad: Tensor,
        sums: &mut NormSums,
    ) -> Result<Tensor> {
        let grad_output = match (&self.output_norm, &saved.output) {
            (Some(norm), Some(saved)) => norm.backward(cx, saved, grad, None, None, sums)?,
            _ => grad,
        };
        let input = match (&self.norm, &saved.stream) {
            (Some(norm), SavedStream::Normed(saved)) => SavedInput::Norm(norm, saved),
            (_, SavedStream::AsItIs(read)) => SavedInput::Stored(read),
            (None, SavedStream::Normed(_)) => unreachable!("without a norm nothing of it is saved"),
        };
        let grad_read = self.part.backward(cx, grad_output, input, &saved.part)?;
        match (&self.norm, &saved.stream) {
            (Some(norm), SavedStream::Normed(saved)) => {
                norm.backward(cx, saved, grad_read, Some(grad), self.output_bias, sums)
            }
            _ => {
                let output = cx.tensor("grad_residual", grad.shape, grad.dtype)?;
                cx.run(Add { a: grad_read, b: grad, output })?;
                Ok(output)
            }
        }
    }

    /// Forward of new tokens in a model that decodes: the residual stream `(1, rows, hidden)` and what is to be added to it,
    /// before and after.
    pub(crate) fn decode(
        &self,
        cx: &mut StepContext<'_>,
        (x, delta): (Tensor, Option<Tensor>),
        step: &DecodeStep,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (x, normed) = match &self.norm {
            Some(norm) => norm.forward(cx, x, delta).map(|(x, normed, _)| (x, normed))?,
            None => add(cx, x, delta).map(|x| (x, x))?,
        };
        let delta = self.part.decode(cx, normed, step)?;
        Ok((x, Some(self.normalise_output(cx, delta)?.0)))
    }
}

/// The residual stream `x` with `delta` added.
fn add(cx: &mut StepContext<'_>, x: Tensor, delta: Option<Tensor>) -> Result<Tensor> {
    let Some(delta) = delta else { return Ok(x) };
    let output = cx.tensor("residual", x.shape, x.dtype)?;
    cx.run(Add { a: delta, b: x, output })?;
    Ok(output)
}
