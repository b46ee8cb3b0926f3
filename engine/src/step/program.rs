//! The step as regions: what is recorded, captured in graphs, and replayed.

use std::collections::VecDeque;
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy, Fill, SumCounts};
use device::{Communicator, Tensor};
use graph_manager::Result;
use parallel::Task;

use crate::gradient_sync::{CopiedRowsSync, DataParallelSync, PartialGradientSync};
use crate::hooks::after_layer;
use crate::inputs::Inputs;
use crate::model::{Chunk, Hidden, LossHead, Model, StepTensors};
use crate::optimizer::Optimizer;
use crate::params::Params;
use crate::pipeline::{Pipeline, Transfers};
use crate::regions::{Mode, Region};
use crate::step_policy::StepContext;

/// What a step of this rank runs, and the memory that it runs on.
pub(super) struct StepProgram {
    pub(super) model: Model,
    pub(super) params: Params,
    pub(super) optimizer: Optimizer,
    pub(super) inputs: Inputs,
    pub(super) pipeline: Pipeline,
    pub(super) data_parallel: Option<DataParallelSync>,
    pub(super) partial_gradients: Option<PartialGradientSync>,
    pub(super) copied_rows: Option<CopiedRowsSync>,
    /// The ranks that scale 8-bit tensors alike.
    pub(super) scale_groups: Vec<Rc<dyn Communicator>>,
    /// `(3, 3)`, f32, in the step's numbers: what 8-bit copies lost, by kind of tensor.
    pub(super) fp8_sums: Tensor,
    pub(super) tensors: StepTensors,
    /// `(1)` or `(2)`, f32: the loss sum, and next to it the sum of z-losses where the architecture has them.
    pub(super) loss_sums: Tensor,
    /// `(microbatches, losses of a microbatch)`, f32: the losses of an evaluation, on the stage with the head and only where
    /// they are kept.
    pub(super) kept_losses: Option<Tensor>,
}

/// Whether a step is a real one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Real,
    /// Stages send and receive nothing, and no weight changes. Sums over ranks run.
    Rehearsal,
}

/// The step as regions, from the whole to its parts.
impl StepProgram {
    /// A training step.
    pub(super) fn train(&self, cx: &mut StepContext<'_>, run: Run) -> Result<()> {
        let tasks = self.pipeline.tasks(cx.microbatches())?;
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(Region::Iteration, (), |cx, ()| {
                cx.region(Region::Begin, (), |cx, ()| self.zero(cx))?;
                self.gather_weights(cx)?;
                self.run_tasks(cx, &tasks, run)?;
                cx.region(Region::Reduce, (), |cx, ()| self.finish_gradients(cx))
            })?;
            match run {
                Run::Real => cx.region(Region::Optimizer, (), |cx, ()| self.update(cx)),
                Run::Rehearsal => Ok(()),
            }
        })
    }

    /// An evaluation step: the forwards of a training step.
    pub(super) fn evaluate(&self, cx: &mut StepContext<'_>, run: Run) -> Result<()> {
        let mut tasks = self.pipeline.tasks(cx.microbatches())?;
        tasks.retain(|task| matches!(task, Task::Forward { .. }));
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(Region::Iteration, (), |cx, ()| {
                cx.region(Region::Begin, (), |cx, ()| self.zero_losses(cx))?;
                self.gather_weights(cx)?;
                self.run_tasks(cx, &tasks, run)?;
                cx.region(Region::Reduce, (), |cx, ()| {
                    if let Some(data_parallel) = &self.data_parallel {
                        data_parallel.sum(cx, self.loss_sums)?;
                    }
                    self.pipeline.sum_over_stages(cx, self.loss_sums)
                })
            })
        })
    }

    fn zero_losses(&self, cx: &StepContext<'_>) -> Result<()> {
        cx.run(Fill { output: self.loss_sums, value: 0.0 })
    }

    /// Sets the loss sum and sparse gradients to 0. Each microbatch adds to sparse gradients. The first one's backward
    /// overwrites all others.
    fn zero(&self, cx: &StepContext<'_>) -> Result<()> {
        self.zero_losses(cx)?;
        if let (Mode::Measure, Some(counts)) = (cx.mode(), self.params.fp8_counts()) {
            counts.zero(cx)?;
        }
        for (_, param) in self.params.iter().filter(|(spec, _)| spec.sparse) {
            if let Some(output) = param.grad {
                cx.run(Fill { output, value: 0.0 })?;
            }
        }
        Ok(())
    }

    /// Starts to gather the weights that the data-parallel ranks updated, unless each layer's forward does that.
    fn gather_weights(&self, cx: &StepContext<'_>) -> Result<()> {
        match &self.data_parallel {
            Some(ranks) if ranks.gathers_ahead(cx) => ranks.gather_all(cx),
            _ => Ok(()),
        }
    }

    /// Runs all tasks of the step in this stage's order. Where forwards overlap with backwards, they run aside.
    /// Gradients are added in the same order as otherwise.
    fn run_tasks(&self, cx: &mut StepContext<'_>, tasks: &[Task], run: Run) -> Result<()> {
        let trains = cx.mode().trains();
        let overlap = self.pipeline.ahead_of_overlap().filter(|_| trains);
        let mut transfers = self.pipeline.start_step(tasks, overlap.is_some(), run == Run::Rehearsal);
        // The forward that runs next to the coming backward.
        let mut aside = None;
        // The head's inputs of forwards that wait for their backward. The head runs there: it adds to gradients.
        let mut to_head = VecDeque::new();
        transfers.receive_ahead(cx, 0)?;
        for (at, &task) in tasks.iter().enumerate() {
            let (chunk, microbatch, begun) = (&self.model.chunks[task.chunk()], task.microbatch(), at + 1);
            let _span = tracing::debug_span!("microbatch", microbatch).entered();
            match task {
                Task::Forward { .. } => {
                    let hidden = match overlap {
                        None => self.forward_task(cx, &mut transfers, task, begun)?,
                        Some(ahead) => {
                            transfers.receive_ahead(cx, begun)?;
                            let (hidden, under_way) =
                                cx.aside(|cx| self.forward_task(cx, &mut transfers, task, begun))?;
                            // The first `ahead` tasks are forwards with no backward beside them. They run aside too: a
                            // region's graph belongs to one lane.
                            if at < ahead {
                                cx.join_aside(under_way)?;
                            } else {
                                aside = Some(under_way);
                            }
                            hidden
                        }
                    };
                    match chunk.head.as_deref() {
                        Some(_) if trains => to_head.push_back(hidden),
                        Some(head) => self.loss(cx, head, chunk.last(), microbatch, hidden)?,
                        None => {}
                    }
                }
                Task::Backward { .. } => {
                    self.backward_task(cx, &mut transfers, task, begun, &mut to_head)?;
                    if let Some(forward) = aside.take() {
                        cx.join_aside(forward)?;
                    }
                }
                Task::Weights { .. } => {
                    transfers.receive_ahead(cx, begun)?;
                    self.weight_gradients(cx, chunk, microbatch)?;
                }
            }
        }
        transfers.finish(cx)
    }

    /// Runs a microbatch forward through a chunk, up to the head, and sends the output to the next part of the model.
    /// `begun` tasks have begun, this one included, here and below.
    fn forward_task(
        &self,
        cx: &mut StepContext<'_>,
        transfers: &mut Transfers<'_>,
        task: Task,
        begun: usize,
    ) -> Result<Hidden> {
        let chunk = &self.model.chunks[task.chunk()];
        let hidden = self.inputs.place(cx, transfers, task, chunk)?;
        transfers.receive_ahead(cx, begun)?;
        let hidden = self.forward(cx, chunk, task.microbatch(), hidden)?;
        transfers.send_activations(cx, task, chunk.last(), &hidden)?;
        Ok(hidden)
    }

    /// Runs a microbatch backward through a chunk, from its losses or from the gradient of the next part of the model,
    /// and sends the gradient to the part before.
    fn backward_task(
        &self,
        cx: &mut StepContext<'_>,
        transfers: &mut Transfers<'_>,
        task: Task,
        begun: usize,
        to_head: &mut VecDeque<Hidden>,
    ) -> Result<()> {
        let (chunk, microbatch) = (&self.model.chunks[task.chunk()], task.microbatch());
        let grad = match chunk.head.as_deref() {
            Some(head) => {
                transfers.receive_ahead(cx, begun)?;
                let Some(hidden) = to_head.pop_front() else { unreachable!("forwards come before backwards") };
                self.loss(cx, head, chunk.last(), microbatch, hidden)?;
                self.loss_backward(cx, head, chunk.last(), microbatch)?
            }
            None => {
                let grad = transfers.receive_gradient(cx, task, chunk.last())?;
                transfers.receive_ahead(cx, begun)?;
                grad
            }
        };
        let grad = self.backward(cx, chunk, microbatch, grad)?;
        transfers.send_gradient(cx, task, chunk.first, grad)
    }

    /// Runs a chunk's layers forward, up to the head.
    fn forward(
        &self,
        cx: &mut StepContext<'_>,
        chunk: &Chunk,
        microbatch: usize,
        mut hidden: Hidden,
    ) -> Result<Hidden> {
        for (layer, module) in (chunk.first..).zip(&chunk.layers) {
            let _span = tracing::debug_span!("layer", layer).entered();
            hidden = cx.region(Region::Forward { layer, microbatch }, hidden, |cx, hidden| {
                self.gather_during(cx, layer, |cx| module.forward(cx, hidden))
            })?;
            after_layer(cx, layer, microbatch, hidden)?;
        }
        Ok(hidden)
    }

    /// Computes a microbatch's losses. An evaluation keeps them for the host if there is a place for them.
    fn loss(
        &self,
        cx: &mut StepContext<'_>,
        head: &dyn LossHead,
        layer: usize,
        microbatch: usize,
        hidden: Hidden,
    ) -> Result<()> {
        let _span = tracing::debug_span!("layer", layer).entered();
        let losses = cx.region(Region::Forward { layer, microbatch }, hidden, |cx, hidden| {
            self.gather_during(cx, layer, |cx| head.forward(cx, hidden))
        })?;
        let Some(kept) = self.kept_losses.filter(|_| cx.mode() == Mode::Evaluate) else { return Ok(()) };
        cx.region(Region::Losses { layer, microbatch }, losses, |cx, input| {
            cx.run(Copy { input, output: kept.at(microbatch) })
        })
    }

    /// Begins a microbatch's backward at its losses. Returns the gradient of the head's input.
    fn loss_backward(
        &self,
        cx: &mut StepContext<'_>,
        head: &dyn LossHead,
        layer: usize,
        microbatch: usize,
    ) -> Result<Tensor> {
        let _span = tracing::debug_span!("layer", layer).entered();
        cx.region(Region::Backward { layer, microbatch }, (), |cx, ()| {
            self.reduce_during(cx, layer, |cx| head.backward(cx))
        })
    }

    /// Runs a chunk's layers backward, from the gradient of its last output to the gradient of its first input.
    fn backward(&self, cx: &mut StepContext<'_>, chunk: &Chunk, microbatch: usize, mut grad: Tensor) -> Result<Tensor> {
        for (at, module) in chunk.layers.iter().enumerate().rev() {
            let layer = chunk.first + at;
            let _span = tracing::debug_span!("layer", layer).entered();
            grad = cx.region(Region::Backward { layer, microbatch }, grad, |cx, grad| {
                self.reduce_during(cx, layer, |cx| module.backward(cx, grad))
            })?;
        }
        Ok(grad)
    }

    /// Computes the weight gradients that a chunk's backward deferred, layer by layer in the same order.
    fn weight_gradients(&self, cx: &mut StepContext<'_>, chunk: &Chunk, microbatch: usize) -> Result<()> {
        for layer in (chunk.first..=chunk.last()).rev() {
            let _span = tracing::debug_span!("layer", layer).entered();
            cx.region(Region::WeightGradients { layer, microbatch }, (), |cx, ()| {
                self.reduce_during(cx, layer, |cx| match chunk.layers.get(layer - chunk.first) {
                    Some(module) => module.weight_gradients(cx),
                    None => cx.run_deferred(),
                })
            })?;
        }
        Ok(())
    }

    /// Runs a layer's forward. In the first microbatch it waits until its weights are gathered from the data-parallel
    /// ranks; or, if they are not gathered ahead, it gathers the next layer's weights meanwhile.
    fn gather_during<T>(
        &self,
        cx: &mut StepContext<'_>,
        layer: usize,
        forward: impl FnOnce(&mut StepContext<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(ranks) = self.data_parallel.as_ref().filter(|_| cx.variant().gathers) else { return forward(cx) };
        if ranks.gathers_ahead(cx) {
            ranks.wait_for(cx, layer)?;
            return forward(cx);
        }
        let gather = ranks.gather_next(cx, layer)?;
        let output = forward(cx)?;
        cx.join(gather)?;
        Ok(output)
    }

    /// Runs work that adds to a layer's gradients. If it is the last such work of the step, the buckets that the previous
    /// region completed are reduced over the data-parallel ranks meanwhile. Where layers have graphs of their own, the end of the
    /// graph waits for that; otherwise nothing does before [`StepProgram::finish_gradients`].
    fn reduce_during<T>(
        &self,
        cx: &mut StepContext<'_>,
        layer: usize,
        work: impl FnOnce(&mut StepContext<'_>) -> Result<T>,
    ) -> Result<T> {
        if !cx.variant().reduces {
            return work(cx);
        }
        let reduction = self.data_parallel.as_ref().map(|ranks| ranks.start(cx, layer)).transpose()?;
        let output = work(cx)?;
        if let Some(ranks) = &self.partial_gradients {
            ranks.sum(cx, layer)?;
        }
        match reduction {
            Some(reduction) if cx.policy().captures_layers() => cx.join(reduction)?,
            Some(reduction) => reduction.leave(),
            None => {}
        }
        Ok(output)
    }

    /// After all backwards: reduces the last gradient bucket, and sums what several stages share.
    fn finish_gradients(&self, cx: &mut StepContext<'_>) -> Result<()> {
        if let Some(ranks) = &self.data_parallel {
            ranks.finish(cx, &[self.loss_sums])?;
        }
        if let Some(ranks) = &self.copied_rows {
            ranks.sum(cx)?;
        }
        self.pipeline.sum_tied_gradients(cx)?;
        if cx.mode() == Mode::Measure {
            self.sum_fp8_counts(cx)?;
        }
        self.pipeline.sum_over_stages(cx, self.loss_sums)
    }

    /// Sums what 8-bit copies lost over all tensors of a kind and all ranks. A stage may have no 8-bit weights.
    fn sum_fp8_counts(&self, cx: &StepContext<'_>) -> Result<()> {
        let sums = self.fp8_sums;
        match self.params.fp8_counts() {
            Some(counts) => cx.run(SumCounts { counts: counts.all, sums })?,
            None => cx.run(Fill { output: sums, value: 0.0 })?,
        }
        for group in &self.scale_groups {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), sums))?;
        }
        self.pipeline.sum_over_stages(cx, sums)
    }

    /// Norm, clip and update. Then the first layer's new weights are gathered. The next step begins with the forward that
    /// reads them, so nothing can overlap with this gather.
    fn update(&self, cx: &mut StepContext<'_>) -> Result<()> {
        self.optimizer.update(cx)?;
        if let Some(scales) = self.params.delayed_scales() {
            scales.update(cx, &self.scale_groups)?;
        }
        match &self.data_parallel {
            Some(ranks) => ranks.gather_first(cx),
            None => Ok(()),
        }
    }
}
