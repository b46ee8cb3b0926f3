//! Transfers between the stages of a pipeline.
//!
//! Forward sends the residual stream to the next stage. Backward sends its gradient to the stage before. A stage has up to
//! four ends of links: forward in and out, backward in and out. Each end has its own communicator, side stream and buffers,
//! at fixed addresses for the whole run, so no transfer waits for another one. When transfers begin is the business of a
//! [pass](crate::passes).

mod link;
mod transfers;

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Area, Communicator, Device, Tensor};
use graph_manager::{Error, Result};
use parallel::{Axis, Direction, PipelineGroups, PipelineStage, Task};

use crate::batch_sizes::BatchSizes;
use crate::model::Residual;
use crate::params::Params;
use crate::step_policy::StepContext;
pub(crate) use link::Link;
pub use transfers::Transfers;

/// A stage's connections to the other stages. The only stage of a run has none.
pub struct Pipeline {
    stage: PipelineStage,
    forward: Rc<Link>,
    backward: Rc<Link>,
    all_stages: Option<Rc<dyn Communicator>>,
    /// The communicator of the first and the last stage, and the gradients of the tied parameter that both have: the part
    /// that this rank updates.
    tied: Option<(Rc<dyn Communicator>, Tensor)>,
    _areas: Vec<Area>,
}

impl Pipeline {
    /// Allocates the send and receive buffers, each for `residual` in a microbatch of `sizes`: the largest of
    /// all steps.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        stage: PipelineStage,
        residual: Option<Residual>,
        sizes: BatchSizes,
        params: &Params,
    ) -> Result<Pipeline> {
        let (mut forward, mut backward) = (Link::default(), Link::default());
        let (mut all_stages, mut tied) = (None, None);
        let mut areas = Vec::new();
        let ranks = params.ranks();
        if let (Some(groups), Some(residual)) = (ranks.pipeline().cloned(), residual) {
            let mut buffer = |name: &str| -> Result<Tensor> {
                let tensor = device.allocate_tensor(&mut areas, name, residual.shape(sizes), residual.dtype)?;
                device.zero(&tensor)?;
                Ok(tensor)
            };
            let PipelineGroups { ends, forward_in, forward_out, backward_in, backward_out } = groups;
            let receives = stage.receive_buffers(Direction::Forward);
            forward = Link::new(device, "forward", residual, (forward_in, receives), forward_out, &mut buffer)?;
            let receives = stage.receive_buffers(Direction::Backward);
            backward = Link::new(device, "backward", residual, (backward_in, receives), backward_out, &mut buffer)?;
            all_stages = ranks.along(Axis::Pipeline).cloned();
            let tied_bucket = params.buckets().find(|bucket| bucket.tied.is_some());
            tied = ends.zip(tied_bucket.map(|bucket| bucket.owned_grads));
        }
        Ok(Pipeline { stage, forward: forward.into(), backward: backward.into(), all_stages, tied, _areas: areas })
    }

    /// The stage's tasks of a step, in order.
    ///
    /// # Errors
    /// A number of microbatches that the schedule cannot run.
    pub fn tasks(&self, microbatches: usize) -> Result<Vec<Task>> {
        self.stage.tasks(microbatches).ok_or_else(|| Error::Usage {
            problem: format!("a step of {microbatches} microbatches on {:?}", self.stage),
            fix: "give at least one group of microbatches; a last, incomplete group has at least one for each stage",
        })
    }

    /// If forwards run next to backwards of other microbatches: the number of forwards before all backwards. Each later
    /// one runs next to the backward that follows it.
    pub fn warmup_of_overlap(&self) -> Option<usize> {
        let schedule = self.stage.schedule();
        schedule.overlaps().then(|| schedule.warmup(self.stage.stage()))
    }

    /// The transfers of a step.
    pub fn start_step(&self) -> Transfers<'_> {
        Transfers::new(self.stage, [&self.forward, &self.backward])
    }

    /// This rank's stage.
    pub(crate) fn stage(&self) -> PipelineStage {
        self.stage
    }

    /// The transfers with the neighbours in one direction.
    pub(crate) fn link(&self, direction: Direction) -> &Rc<Link> {
        match direction {
            Direction::Forward => &self.forward,
            Direction::Backward => &self.backward,
        }
    }

    /// Sums the gradients of the parameter that the first and the last stage both have. It comes after all backwards and
    /// after the data-parallel reduction. A sum of two has the same bits in either order, so both stages make the same
    /// update.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum_tied_gradients(&self, cx: &StepContext<'_>) -> Result<()> {
        let Some((ends, grads)) = &self.tied else { return Ok(()) };
        cx.run(Collective::in_place(CollectiveKind::AllReduceSum, ends.clone(), *grads))
    }

    /// Sums a small tensor over the stages, such as the loss: only the last stage computes it.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum_over_stages(&self, cx: &StepContext<'_>, tensor: Tensor) -> Result<()> {
        let Some(all) = &self.all_stages else { return Ok(()) };
        cx.run(Collective::in_place(CollectiveKind::AllReduceSum, all.clone(), tensor))
    }
}
