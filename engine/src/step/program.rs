//! The step as regions. Its code is recorded; the regions are captured in graphs and replayed.

use std::collections::VecDeque;
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy, Fill, SumCounts};
use device::{Communicator, Tensor};
use graph_manager::{Phase, Result, TensorTree};
use parallel::{Axis, Task};

use super::first_forwards::FirstForwards;
use super::metrics::StepNumbers;
use crate::gradient_sync::{GradientSync, Summand, Use};
use crate::graph_options::Scope;
use crate::hooks::after_layer;
use crate::inputs::Inputs;
use crate::model::{Chunk, Hidden, LossHead, Model, Saved};
use crate::optimizer::Optimizer;
use crate::params::{ParamSpec, Params, Sharding};
use crate::passes::{StepOf, Timing};
use crate::pipeline::{Pipeline, Transfers};
use crate::regions::{Mode, Region, Room};
use crate::step_policy::StepContext;

/// The parts that a step of this rank runs, and the memory that the step uses.
pub(super) struct StepProgram {
    pub(super) model: Model,
    pub(super) inputs: Inputs,
    pub(super) pipeline: Pipeline,
    /// Lengths that samples may have below the whole one, ascending.
    pub(super) shorter_lengths: Vec<usize>,
    pub(super) params: Params,
    pub(super) optimizer: Optimizer,
    pub(super) gradients: GradientSync,
    /// u8, a `Control`.
    pub(super) control: Tensor,
    /// The numbers that a step returns to the host.
    pub(super) numbers: StepNumbers,
    pub(super) timing: Timing,
    /// `(microbatches, losses of a microbatch)`, f32: the losses of an evaluation, on the stage with the head and only
    /// where they are kept.
    pub(super) kept_losses: Option<Tensor>,
    /// The forwards that a step begins with.
    pub(super) first: Option<FirstForwards>,
}

/// The results of a chunk's forward of a microbatch.
struct Forwarded {
    microbatch: usize,
    /// The output of the last layer before the head, or of the chunk's last layer.
    hidden: Hidden,
    /// By layer: the values that its backward needs.
    saved: Vec<Saved>,
}

/// Whether ranks divide a parameter's gradient: then it has a buffer while a microbatch's backward runs.
fn is_divided(spec: &ParamSpec) -> bool {
    spec.sharding >= Sharding::Gradients
}

/// The layers of a chunk in one direction, from the first to the last: a region of its own if chunks become graphs.
fn in_chunk<I: TensorTree, O>(
    cx: &mut StepContext<'_>,
    phase: Phase,
    (first, last): (usize, usize),
    microbatch: usize,
    input: I,
    layers: impl FnOnce(&mut StepContext<'_>, I) -> Result<O>,
) -> Result<O> {
    match cx.policy().graphs() {
        Some(Scope::PerChunk) => cx.region(Region::Chunk { phase, first, last, microbatch }, input, layers),
        _ => layers(cx, input),
    }
}

/// The step as regions, from the whole to the parts.
impl StepProgram {
    /// A training step.
    pub(super) fn train(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let tasks = self.pipeline.tasks(cx.microbatches())?;
        self.set_passes(cx, &tasks);
        cx.region(Region::Step, (), |cx, ()| {
            let before = cx.region(Region::Iteration, (), |cx, ()| {
                let before = cx.region(Region::Begin, (), |cx, ()| {
                    self.zero(cx)?;
                    self.scales_before(cx)
                })?;
                self.run_tasks(cx, &tasks)?;
                cx.region(Region::Reduce, (), |cx, ()| self.finish_gradients(cx))?;
                Ok(before)
            })?;
            cx.region(Region::Optimizer, before, |cx, before| self.update(cx, before))
        })
    }

    /// Copies of the delayed scales and of the scales' history, if the step may be void.
    fn scales_before(&self, cx: &mut StepContext<'_>) -> Result<Option<[Tensor; 2]>> {
        match self.params.delayed_scales().filter(|_| cx.mode().room == Room::Budget) {
            Some(scales) => scales.copied(cx).map(Some),
            None => Ok(None),
        }
    }

    /// An evaluation step: the forwards of a training step. Also those that a step begins with.
    pub(super) fn evaluate(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let mut tasks = self.pipeline.tasks(cx.microbatches())?;
        tasks.retain(|task| matches!(task, Task::Forward { .. }));
        self.set_passes(cx, &tasks);
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(Region::Iteration, (), |cx, ()| {
                cx.region(Region::Begin, (), |cx, ()| self.zero_sums(cx))?;
                self.run_tasks(cx, &tasks)?;
                cx.region(Region::Reduce, (), |cx, ()| {
                    self.gradients.sum(self.numbers.sums).into_iter().try_for_each(|op| cx.run(op))?;
                    self.pipeline.sum_over_stages(cx, self.numbers.sums)?;
                    self.first.map_or(Ok(()), |first| first.keep_rewards(cx, self.numbers.sums))
                })
            })
        })
    }

    fn zero_sums(&self, cx: &StepContext<'_>) -> Result<()> {
        cx.run(Fill { output: self.numbers.sums, value: 0.0 })
    }

    /// Sets to 0: the sums of losses and loads, in steps that measure the counts of 8-bit copies, and sparse gradients.
    /// Each microbatch adds to sparse gradients, unless ranks divide them. All other gradients are overwritten by the
    /// first microbatch's backward.
    fn zero(&self, cx: &StepContext<'_>) -> Result<()> {
        self.zero_sums(cx)?;
        if let (Mode::Measure, Some(counts)) = (cx.mode().mode, self.params.fp8_counts()) {
            counts.zero(cx)?;
        }
        self.zero_sparse(cx, |spec| !is_divided(spec))
    }

    /// Sets the sparse gradients of some parameters to 0.
    fn zero_sparse(&self, cx: &StepContext<'_>, of: impl Fn(&ParamSpec) -> bool) -> Result<()> {
        let sparse = self.params.iter().filter(|(spec, _)| spec.sparse && of(spec));
        sparse.filter_map(|(_, param)| param.grad).try_for_each(|output| cx.run(Fill { output, value: 0.0 }))
    }

    fn set_passes(&self, cx: &mut StepContext<'_>, tasks: &[Task]) {
        let StepProgram { model: Model { chunks, .. }, pipeline, .. } = self;
        cx.set_passes(self.timing.passes(cx, &StepOf { tasks, chunks, pipeline, gradients: &self.gradients }));
    }

    /// Runs all tasks of the step in this stage's order.
    fn run_tasks(&self, cx: &mut StepContext<'_>, tasks: &[Task]) -> Result<()> {
        let trains = cx.mode().trains();
        let model = &self.model;
        let mut transfers = self.pipeline.start_step();
        // Results of forwards that wait for their backwards, by chunk. Microbatches go backward in the order of their
        // forwards.
        let mut in_flight: Vec<VecDeque<Forwarded>> = model.chunks.iter().map(|_| VecDeque::new()).collect();
        for &task in tasks {
            let (chunk, microbatch) = (&model.chunks[task.chunk()], task.microbatch());
            match task {
                Task::Forward { .. } => {
                    let forwarded = self.forward_task(cx, &mut transfers, task)?;
                    if trains {
                        in_flight[task.chunk()].push_back(forwarded);
                    }
                }
                Task::Backward { .. } => {
                    let oldest = in_flight[task.chunk()].pop_front();
                    let Some(forwarded) = oldest.filter(|oldest| oldest.microbatch == microbatch) else {
                        unreachable!("microbatches go backward in the order in which they went forward")
                    };
                    self.backward_task(cx, &mut transfers, task, forwarded)?;
                }
                Task::Weights { .. } => {
                    let layers = (chunk.first, chunk.last());
                    in_chunk(cx, Phase::WeightGradients, layers, microbatch, (), |cx, ()| {
                        self.weight_gradients(cx, chunk, microbatch)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Runs a microbatch forward through a chunk, and sends the output to the next part of the model. In training that is
    /// up to the head, whose forward belongs to the backward. An evaluation computes the losses, and keeps them for the
    /// host if there is a place for them.
    fn forward_task(&self, cx: &mut StepContext<'_>, transfers: &mut Transfers<'_>, task: Task) -> Result<Forwarded> {
        let (chunk, microbatch) = (&self.model.chunks[task.chunk()], task.microbatch());
        let hidden = self.inputs.to_forward(cx, transfers, task, chunk)?;
        let head = chunk.head.as_deref().filter(|_| !cx.mode().trains());
        let end = chunk.first + chunk.layers.len() + usize::from(head.is_some());
        let layers = (chunk.first, chunk.first.max(end - 1));
        let (forwarded, losses) = in_chunk(cx, Phase::Forward, layers, microbatch, hidden, |cx, hidden| {
            let forwarded = self.forward(cx, chunk, microbatch, hidden)?;
            let losses =
                head.map(|head| self.loss(cx, head, chunk.last(), microbatch, forwarded.hidden)).transpose()?;
            Ok((forwarded, losses))
        })?;
        let kept = match cx.mode().mode {
            Mode::Evaluate => self.kept_losses,
            _ => self.first.and_then(|first| first.results),
        };
        if let (Some((losses, _)), Some(kept)) = (losses, kept) {
            cx.region(Region::Losses { layer: chunk.last(), microbatch }, losses, |cx, input| {
                cx.run(Copy { input, output: kept.at(microbatch) })
            })?;
        }
        transfers.send_activations(cx, task, chunk.last(), &forwarded.hidden)?;
        Ok(forwarded)
    }

    /// Runs a microbatch backward through a chunk, from the microbatch's losses or from the gradient of the next part
    /// of the model, and sends the gradient to the part before. The head's forward runs here: it adds to gradients.
    fn backward_task(
        &self,
        cx: &mut StepContext<'_>,
        transfers: &mut Transfers<'_>,
        task: Task,
        Forwarded { hidden, saved, .. }: Forwarded,
    ) -> Result<()> {
        let (chunk, microbatch) = (&self.model.chunks[task.chunk()], task.microbatch());
        let layers = (chunk.first, chunk.last());
        let grad = match chunk.head.as_deref() {
            Some(head) => in_chunk(cx, Phase::Backward, layers, microbatch, hidden, |cx, hidden| {
                let (_, of_head) = self.loss(cx, head, chunk.last(), microbatch, hidden)?;
                let grad = self.loss_backward(cx, head, chunk.last(), microbatch, &of_head)?;
                self.backward(cx, chunk, microbatch, &saved, grad)
            })?,
            None => {
                let grad = transfers.receive_gradient(cx, task, chunk.last())?;
                in_chunk(cx, Phase::Backward, layers, microbatch, grad, |cx, grad| {
                    self.backward(cx, chunk, microbatch, &saved, grad)
                })?
            }
        };
        transfers.send_gradient(cx, task, chunk.first, grad)
    }

    /// Runs a chunk's layers forward, up to the head.
    fn forward(
        &self,
        cx: &mut StepContext<'_>,
        chunk: &Chunk,
        microbatch: usize,
        mut hidden: Hidden,
    ) -> Result<Forwarded> {
        let mut all = Vec::new();
        for (layer, module) in (chunk.first..).zip(&chunk.layers) {
            let (output, saved) = cx.region(Region::Forward { layer, microbatch }, hidden, |cx, hidden| {
                self.gather_for_forward(cx, layer)?;
                let (output, saved) = module.forward(cx, hidden)?;
                if let Some(on_host) = &self.timing.on_host {
                    on_host.note(layer, microbatch, module.for_backward(&saved));
                }
                Ok((output, saved))
            })?;
            after_layer(cx, layer, microbatch, output)?;
            all.push(saved);
            hidden = output;
        }
        Ok(Forwarded { microbatch, hidden, saved: all })
    }

    /// Computes a microbatch's losses. Returns them, and the values that the head's backward needs.
    fn loss(
        &self,
        cx: &mut StepContext<'_>,
        head: &dyn LossHead,
        layer: usize,
        microbatch: usize,
        hidden: Hidden,
    ) -> Result<(Tensor, Saved)> {
        cx.region(Region::Forward { layer, microbatch }, hidden, |cx, hidden| {
            self.gather_for_forward(cx, layer)?;
            head.forward(cx, hidden)
        })
    }

    /// Begins a microbatch's backward at the microbatch's losses. Returns the gradient of the head's input.
    fn loss_backward(
        &self,
        cx: &mut StepContext<'_>,
        head: &dyn LossHead,
        layer: usize,
        microbatch: usize,
        saved: &Saved,
    ) -> Result<Tensor> {
        cx.region(Region::Backward { layer, microbatch }, (), |cx, ()| {
            let grad = head.backward(cx, saved)?;
            self.complete_gradients(cx, layer, microbatch, Phase::Backward)?;
            Ok(grad)
        })
    }

    /// Runs a chunk's layers backward, from the gradient of the chunk's last output to the gradient of the chunk's
    /// first input. `saved` has the values that the forward of each layer saved.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        chunk: &Chunk,
        microbatch: usize,
        saved: &[Saved],
        mut grad: Tensor,
    ) -> Result<Tensor> {
        for (at, (module, saved)) in chunk.layers.iter().zip(saved).enumerate().rev() {
            let layer = chunk.first + at;
            grad = cx.region(Region::Backward { layer, microbatch }, grad, |cx, grad| {
                self.gather(cx, layer, Use::Backward)?;
                if let Some(after) = self.gradients.after_in_chunk(layer) {
                    self.sum_divided(cx, after)?;
                }
                self.zero_sparse(cx, |spec| spec.layer == layer && is_divided(spec))?;
                let grad = module.backward(cx, saved, grad)?;
                self.complete_gradients(cx, layer, microbatch, Phase::Backward)?;
                // No other backward of the chunk comes after. The step's last sums are work of `Region::Reduce`.
                let ends_step = cx.is_last_microbatch() && self.gradients.first_layer() == Some(layer);
                if layer == chunk.first && !ends_step {
                    self.sum_divided(cx, layer)?;
                }
                Ok(grad)
            })?;
        }
        Ok(grad)
    }

    /// The regions of the weight gradients of a split backward, layer by layer in the same order. A pass puts the
    /// operations there.
    fn weight_gradients(&self, cx: &mut StepContext<'_>, chunk: &Chunk, microbatch: usize) -> Result<()> {
        for layer in (chunk.first..=chunk.last()).rev() {
            cx.region(Region::WeightGradients { layer, microbatch }, (), |cx, ()| {
                if let Some(module) = chunk.layers.get(layer - chunk.first) {
                    module.weight_gradient_regions(cx)?;
                }
                self.complete_gradients(cx, layer, microbatch, Phase::WeightGradients)
            })?;
        }
        Ok(())
    }

    /// Gathers the weights that a layer's forward reads, if ranks have parts of the weights.
    fn gather_for_forward(&self, cx: &StepContext<'_>, layer: usize) -> Result<()> {
        self.gather(cx, layer, if cx.is_first_microbatch() { Use::First } else { Use::Later })
    }

    fn gather(&self, cx: &StepContext<'_>, layer: usize, used: Use) -> Result<()> {
        self.gradients.gather(cx, layer, used).into_iter().try_for_each(|op| cx.run(op))
    }

    /// If ranks divide gradients: sums those of a layer over ranks, after its backward; those that are whole in the
    /// last microbatch.
    fn sum_divided(&self, cx: &StepContext<'_>, layer: usize) -> Result<()> {
        if !self.gradients.divides() {
            return Ok(());
        }
        let whole = if cx.is_last_microbatch() { self.gradients.reduce(layer) } else { Vec::new() };
        let divided = self.gradients.scatter(layer, Summand::of(cx.microbatch().unwrap_or(0)));
        divided.into_iter().chain(whole).try_for_each(|op| cx.run(op))
    }

    /// Called at the end of work that adds to a layer's gradients. If no later work of the step adds to them, or ranks
    /// divide them, it sums the gradients that ranks that share the layer computed in parts.
    fn complete_gradients(&self, cx: &StepContext<'_>, layer: usize, microbatch: usize, phase: Phase) -> Result<()> {
        let is_last = microbatch + 1 == cx.microbatches() || cx.policy().divides_gradients(layer);
        match phase == self.timing.completing() && is_last {
            true => self.gradients.complete(cx, layer),
            false => Ok(()),
        }
    }

    /// After all backwards: sums gradients and losses over the data-parallel ranks, then tied gradients and losses over
    /// stages.
    fn finish_gradients(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let gradients = &self.gradients;
        let layers = gradients.layers().into_iter().rev();
        let left = layers.filter(|layer| !gradients.divides() || gradients.first_layer() == Some(*layer));
        let summand = Summand::of(cx.microbatches() - 1);
        let of_layer = |layer| gradients.scatter(layer, summand).into_iter().chain(gradients.reduce(layer));
        let buckets = left.flat_map(of_layer);
        buckets.chain(gradients.sum(self.numbers.sums)).try_for_each(|op| cx.run(op))?;
        if let Some(beyond) = self.numbers.beyond {
            // Ranks that share layers have other rows, if experts are whole.
            let ranks = self.params.ranks();
            for group in ranks.chain(ranks.axes(Axis::Tensor) - ranks.axes(Axis::ExpertTensor)) {
                cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group, beyond))?;
            }
        }
        self.pipeline.sum_tied_gradients(cx)?;
        if cx.mode().mode == Mode::Measure {
            self.sum_fp8_counts(cx)?;
        }
        self.pipeline.sum_over_stages(cx, self.numbers.sums)
    }

    /// Sums the counts of values that 8-bit copies lost over all tensors of a kind and all ranks. A stage may have no
    /// 8-bit weights.
    fn sum_fp8_counts(&self, cx: &StepContext<'_>) -> Result<()> {
        let sums = self.numbers.fp8;
        match self.params.fp8_counts() {
            Some(counts) => cx.run(SumCounts { counts: counts.all, sums })?,
            None => cx.run(Fill { output: sums, value: 0.0 })?,
        }
        for group in self.scale_groups() {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group, sums))?;
        }
        self.pipeline.sum_over_stages(cx, sums)
    }

    /// Norm, clip and update.
    fn update(&self, cx: &mut StepContext<'_>, scales_before: Option<[Tensor; 2]>) -> Result<()> {
        self.optimizer.update(cx)?;
        for bias in &self.model.selection_biases {
            cx.run(bias.update(self.numbers.status))?;
        }
        if let Some(scales) = self.params.delayed_scales() {
            scales.update(cx, &self.scale_groups())?;
            if let (Some(before), Some(void)) = (scales_before, self.numbers.beyond) {
                scales.put_back(cx, void, before)?;
            }
        }
        Ok(())
    }

    /// The ranks of this stage, which scale 8-bit tensors alike.
    fn scale_groups(&self) -> Vec<Rc<dyn Communicator>> {
        let ranks = self.params.ranks();
        ranks.chain(ranks.of_stage())
    }
}
