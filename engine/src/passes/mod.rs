//! Passes decide when the work of a step is done, and which work runs side by side. The step's code gives all
//! operations, in one order.

mod buckets;
mod expert_rows;
mod host_state;
mod name;
mod overlap;
mod present;
mod stage_transfers;
mod task_walk;
mod tensor_parallel;
mod weight_gradients;

use std::rc::Rc;

use device::BufferId;
use graph_manager::{Phase, SideStream, StepPass};
use parallel::{Axis, Purpose, Ranks, Task};

use crate::batch_sizes::BatchSizes;
use crate::gradient_sync::GradientSync;
use crate::model::Chunk;
use crate::pipeline::Pipeline;
use crate::regions::Region;
use crate::step_policy::StepContext;
use buckets::Buckets;
pub(crate) use expert_rows::ExpertRowQueues;
use expert_rows::ExpertRows;
use host_state::HostState;
pub(crate) use host_state::StateOnHost;
pub use name::PassName;
use overlap::Overlap;
use present::Present;
pub(crate) use present::{HostQueues, SavedOnHost};
use stage_transfers::StageTransfers;
use task_walk::TaskWalk;
use tensor_parallel::TensorParallelTransfers;
use weight_gradients::WeightGradients;

/// The settings, queues and groups that the passes of a rank's steps use.
pub(crate) struct Timing {
    pub(crate) left_out: Vec<PassName>,
    /// The memory of the parameters' gradients.
    pub(crate) gradients: BufferId,
    /// Whether backwards leave weight gradients to separate regions.
    pub(crate) splits_backward: bool,
    /// Whether a layer's weight gradients may be computed next to the backwards of earlier layers.
    pub(crate) gradients_outlive_layers: bool,
    pub(crate) weights_queue: Rc<SideStream>,
    pub(crate) ranks: Rc<Ranks>,
    pub(crate) tensor_queue: Rc<SideStream>,
    pub(crate) buckets_queue: Rc<SideStream>,
    /// `None` if all saved tensors stay on the device.
    pub(crate) on_host: Option<SavedOnHost>,
    /// `None` if the optimizer's state stays on the device.
    pub(crate) state: Option<StateOnHost>,
    /// `None` if each rank has all experts.
    pub(crate) row_queues: Option<ExpertRowQueues>,
}

/// A step that passes are made for.
pub(crate) struct StepOf<'s> {
    pub(crate) tasks: &'s [Task],
    pub(crate) chunks: &'s [Chunk],
    pub(crate) pipeline: &'s Pipeline,
    pub(crate) gradients: &'s GradientSync,
}

impl Timing {
    /// The regions that complete gradients, in the last microbatch.
    pub(crate) fn completing(&self) -> Phase {
        if self.splits_backward { Phase::WeightGradients } else { Phase::Backward }
    }

    /// The passes of a step, in order.
    pub(crate) fn passes(&self, cx: &StepContext<'_>, step: &StepOf<'_>) -> Vec<Box<dyn StepPass<Region>>> {
        PassName::ALL.into_iter().filter_map(|name| self.pass(name, cx, step)).collect()
    }

    fn pass(&self, name: PassName, cx: &StepContext<'_>, step: &StepOf<'_>) -> Option<Box<dyn StepPass<Region>>> {
        let StepOf { tasks, chunks, pipeline, gradients } = *step;
        let walk = || TaskWalk::new(pipeline.stage(), chunks, tasks, cx.mode().trains());
        let is_left_out = |name| self.left_out.contains(&name);
        let overlap = pipeline.warmup_of_overlap().filter(|_| cx.mode().trains() && !is_left_out(PassName::Overlap));
        let stays = [PassName::StageTransfers, PassName::HostState].contains(&name);
        if is_left_out(name) && !stays {
            return None;
        }
        Some(match name {
            PassName::Present => Box::new(Present::new(self.on_host.as_ref().filter(|_| cx.mode().trains())?, chunks)),
            PassName::HostState => {
                let state = self.state.as_ref().filter(|_| cx.mode().trains())?;
                let queues = (!is_left_out(name)).then(|| state.queues.clone());
                Box::new(HostState::new(&state.buffers, queues))
            }
            PassName::Overlap => {
                let heads = chunks.iter().filter(|chunk| chunk.head.is_some()).map(Chunk::last).collect();
                let purposes = [
                    (Axis::Tensor, Purpose::Main, Purpose::Aside),
                    (Axis::Expert, Purpose::Rows, Purpose::RowsAside),
                    (Axis::Context, Purpose::Keys, Purpose::KeysAside),
                ];
                let twins = purposes.into_iter().filter_map(|(axis, purpose, aside)| {
                    let of = |purpose| self.ranks.for_purpose(self.ranks.axes(axis), purpose).cloned();
                    of(purpose).zip(of(aside))
                });
                Box::new(Overlap::new(tasks, walk(), overlap?, heads, twins.collect()))
            }
            PassName::WeightGradients => Box::new(WeightGradients::new(
                &self.weights_queue,
                self.gradients,
                self.splits_backward,
                self.gradients_outlive_layers,
            )),
            PassName::TensorParallelTransfers => {
                // The pass also moves the keys of context ranks. Without either group there is none.
                let keys = self.ranks.for_purpose(self.ranks.axes(Axis::Context), Purpose::Keys);
                let tensor = self.ranks.along(Axis::Tensor);
                tensor.or(keys)?;
                Box::new(TensorParallelTransfers::new(&self.tensor_queue, tensor, keys))
            }
            PassName::ExpertRows => {
                let of = |purpose| self.ranks.for_purpose(self.ranks.axes(Axis::Expert), purpose).cloned();
                let groups = [Purpose::Rows, Purpose::RowsAside].into_iter().filter_map(of).collect();
                Box::new(ExpertRows::new(self.row_queues.as_ref()?, groups))
            }
            PassName::Buckets if gradients.communicators().is_empty() && !gradients.gathers_any() => return None,
            PassName::Buckets => Box::new(Buckets::new(&self.buckets_queue, cx, gradients, self.completing())),
            // Transfers have their queues in any case: on the compute queue two stages could wait for each other.
            PassName::StageTransfers => {
                let ahead = !is_left_out(PassName::StageTransfers);
                Box::new(StageTransfers::new(pipeline, BatchSizes::of(cx), tasks, walk(), overlap.is_some(), ahead))
            }
        })
    }
}
