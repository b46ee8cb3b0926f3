//! A branch of the residual stream: a norm, a part such as attention or a feed-forward layer, and a norm of its output.
//! A model may have one of the two norms, or both.

use device::Tensor;
use device::ops::{Add, QuantizeSource};
use graph_manager::Result;

use crate::graph_options::GraphModule;
use crate::model::attention::attended::Attended;
use crate::model::layer::Saved;
use crate::model::norm::{NormLayer, NormSums, Normed, SavedNorm};
use crate::model::part::{BlockPart, DecodeStep, Halves, SavedInput};
use crate::model::sequence::Hidden;
use crate::params::Param;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// A part of a block, with the part's norms. The next reader of the residual stream adds the branch's output to it.
pub(crate) struct Branch {
    pub(crate) module: GraphModule,
    /// The norm of the residual stream, before the part; `None` if the part reads the stream unnormed.
    pub(crate) norm: Option<NormLayer>,
    pub(crate) part: Box<dyn BlockPart>,
    /// The norm of the part's output; `None` if that is added to the stream unnormed.
    pub(crate) output_norm: Option<NormLayer>,
    /// The part's output bias, if the norm before the part sums the bias's gradient.
    pub(crate) output_bias: Option<Param>,
}

/// The values that a branch leaves for its backward.
pub(crate) struct SavedBranch {
    stream: SavedStream,
    part: Saved,
    output: Option<SavedNorm>,
}

/// The residual stream that a branch saves.
#[derive(Clone, Copy)]
enum SavedStream {
    Normed(SavedNorm),
    /// The stream that a part without a norm read.
    AsItIs(Normed),
}

impl SavedBranch {
    /// The output of attention, if the branch has attention; `branch` saved this.
    pub(crate) fn attended(&self, branch: &Branch) -> Option<Attended> {
        branch.part.attended(&self.part)
    }

    /// The large tensors that backward reads; `branch` saved this.
    pub(crate) fn for_backward(&self, branch: &Branch) -> Vec<Tensor> {
        let output = self.output.map(|norm| norm.input);
        [self.stream()].into_iter().chain(branch.part.for_backward(&self.part)).chain(output).collect()
    }

    /// The residual stream before the branch: the sum that the branch read.
    pub(crate) fn stream(&self) -> Tensor {
        match self.stream {
            SavedStream::Normed(norm) => norm.input,
            SavedStream::AsItIs(Normed::Stored(sum) | Normed::Computed(QuantizeSource::Stored(sum))) => sum,
            SavedStream::AsItIs(Normed::Computed(_)) => unreachable!("a part without a norm reads the stream itself"),
        }
    }
}

/// The regions of a branch within the region of the branch's layer.
enum Regions<'b> {
    /// No regions of the branch.
    None,
    /// The region of the branch's module.
    One(Region),
    /// The regions of the halves of the branch's part.
    Two(&'b dyn Halves, Region, Region),
}

impl Branch {
    fn regions(&self, cx: &StepContext<'_>) -> Regions<'_> {
        let of_module = |module| {
            let of_layer = cx.current_region()?;
            let (layer, _) = of_layer.layer_and_microbatch()?;
            of_layer.of_module(module).filter(|_| cx.policy().divides(layer))
        };
        let halves = self.part.halves().filter(|halves| cx.policy().names(halves.first()));
        match (of_module(self.module), halves) {
            (None, _) => Regions::None,
            (Some(region), None) => Regions::One(region),
            (Some(second), Some(halves)) => match of_module(halves.first()) {
                Some(first) => Regions::Two(halves, first, second),
                None => unreachable!("a layer has regions for all modules or for none"),
            },
        }
    }

    /// [`Branch::forward`], in the branch's regions if there are any.
    pub(crate) fn forward_in_regions(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, SavedBranch)> {
        let (halves, first, second) = match self.regions(cx) {
            Regions::None => return self.forward(cx, input, None),
            Regions::One(region) => return cx.region(region, input, |cx, input| self.forward(cx, input, None)),
            Regions::Two(halves, first, second) => (halves, first, second),
        };
        let (x, stream, half) = cx.region(first, input, |cx, input| {
            let (x, normed, stream) = self.read(cx, input.x, input.delta)?;
            Ok((x, stream, halves.forward_first(cx, normed, input.samples)?))
        })?;
        cx.region(second, input.samples, |cx, samples| {
            let (delta, part) = halves.forward_second(cx, half, samples)?;
            let (delta, output) = self.normalise_output(cx, delta)?;
            Ok((Hidden { x, delta: Some(delta), ..input }, SavedBranch { stream, part, output }))
        })
    }

    /// [`Branch::backward`], in the branch's regions if there are any. They leave nothing to `sums`: they may have
    /// graphs of their own, and nothing of these may be done elsewhere.
    pub(crate) fn backward_in_regions(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedBranch,
        grad: Tensor,
        sums: &mut NormSums,
    ) -> Result<Tensor> {
        let (halves, first, second) = match self.regions(cx) {
            Regions::None => return self.backward(cx, saved, grad, sums),
            Regions::One(region) => {
                return cx.region(region, grad, |cx, grad| {
                    let mut sums = NormSums::default();
                    let grad = self.backward(cx, saved, grad, &mut sums)?;
                    sums.add_up(cx)?;
                    Ok(grad)
                });
            }
            Regions::Two(halves, first, second) => (halves, first, second),
        };
        let left = cx.region(second, grad, |cx, grad| {
            let mut sums = NormSums::default();
            let grad_output = self.output_gradient(cx, saved, grad, &mut sums)?;
            let left = halves.backward_second(cx, grad_output, self.saved_input(saved), &saved.part)?;
            sums.add_up(cx)?;
            Ok(left)
        })?;
        cx.region(first, (grad, left), |cx, (grad, left)| {
            let mut sums = NormSums::default();
            let grad_read = halves.backward_first(cx, &left, &saved.part)?;
            let grad = self.stream_gradient(cx, saved, grad_read, grad, &mut sums)?;
            sums.add_up(cx)?;
            Ok(grad)
        })
    }

    /// Begins and ends the branch's regions, if there are any, for weight gradients that are computed later.
    pub(crate) fn weight_gradient_regions(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let regions = match self.regions(cx) {
            Regions::None => Vec::new(),
            Regions::One(region) => vec![region],
            Regions::Two(_, first, second) => vec![second, first],
        };
        regions.into_iter().try_for_each(|region| cx.region(region, (), |_, ()| Ok(())))
    }

    /// The residual stream, the part's input, and the values that backward needs.
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

    /// The forward: in backward without attention, if its output was `kept`.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        input: Hidden,
        kept: Option<Attended>,
    ) -> Result<(Hidden, SavedBranch)> {
        let (x, normed, stream) = self.read(cx, input.x, input.delta)?;
        let (delta, part) = match kept {
            Some(kept) => self.part.forward_around(cx, normed, input.samples, kept)?,
            None => self.part.forward(cx, normed, input.samples)?,
        };
        let (delta, output) = self.normalise_output(cx, delta)?;
        Ok((Hidden { x, delta: Some(delta), ..input }, SavedBranch { stream, part, output }))
    }

    /// The values that the branch adds to the residual stream, from the part's output.
    fn normalise_output(&self, cx: &mut StepContext<'_>, delta: Tensor) -> Result<(Tensor, Option<SavedNorm>)> {
        let Some(norm) = &self.output_norm else { return Ok((delta, None)) };
        let (_, normed, saved) = norm.forward(cx, delta, None)?;
        Ok((normed, Some(saved)))
    }

    /// The branch's forward as far as backward needs. Only the backward of an output norm needs the part's output.
    pub(crate) fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<SavedBranch> {
        if self.output_norm.is_some() {
            return self.forward(cx, input, None).map(|(_, saved)| saved);
        }
        let (_, normed, stream) = self.read(cx, input.x, input.delta)?;
        let part = self.part.prepare_backward(cx, normed, input.samples)?;
        Ok(SavedBranch { stream, part, output: None })
    }

    /// The gradient of the residual stream before the branch from `grad`, the gradient after the branch; see
    /// [`BlockPart::backward`]. The norms leave their parameter gradients to `sums`.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedBranch,
        grad: Tensor,
        sums: &mut NormSums,
    ) -> Result<Tensor> {
        let grad_output = self.output_gradient(cx, saved, grad, sums)?;
        let grad_read = self.part.backward(cx, grad_output, self.saved_input(saved), &saved.part)?;
        self.stream_gradient(cx, saved, grad_read, grad, sums)
    }

    /// The gradient of the part's output, from that of the residual stream after the branch.
    fn output_gradient(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedBranch,
        grad: Tensor,
        sums: &mut NormSums,
    ) -> Result<Tensor> {
        match (&self.output_norm, &saved.output) {
            (Some(norm), Some(saved)) => norm.backward(cx, saved, grad, None, None, sums),
            _ => Ok(grad),
        }
    }

    /// The part's input.
    fn saved_input<'s>(&'s self, saved: &'s SavedBranch) -> SavedInput<'s> {
        match (&self.norm, &saved.stream) {
            (Some(norm), SavedStream::Normed(saved)) => SavedInput::Norm(norm, saved),
            (_, SavedStream::AsItIs(read)) => SavedInput::Stored(read),
            (None, SavedStream::Normed(_)) => unreachable!("without a norm nothing of it is saved"),
        }
    }

    /// The gradient of the residual stream before the branch, from the gradient of the part's input and from `grad`,
    /// the gradient after the branch.
    fn stream_gradient(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedBranch,
        grad_read: Tensor,
        grad: Tensor,
        sums: &mut NormSums,
    ) -> Result<Tensor> {
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

    /// Forward of new tokens in a model that decodes: the residual stream `(1, rows, hidden)` and the tensor to be
    /// added to it, before and after.
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
