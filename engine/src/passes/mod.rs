//! When the work of a step is done, and beside what. The step's code says what is computed; passes decide on time.

mod tensor_parallel;
mod weight_gradients;

use tensor_parallel::TensorParallelTransfers;
use weight_gradients::WeightGradients;

use std::fmt::{Display, Formatter};
use std::rc::Rc;

use device::{BufferId, Communicator};
use graph_manager::{SideStream, StepPass};

use crate::regions::Region;
use crate::step_policy::StepContext;

/// A pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassName {
    /// Gradients of weights on a queue of their own, or in the regions that a split backward has for them.
    WeightGradients,
    /// Transfers between ranks that share layers beside products.
    TensorParallelTransfers,
}

impl PassName {
    /// All passes, in the order in which they are applied.
    pub const ALL: [PassName; 2] = [PassName::WeightGradients, PassName::TensorParallelTransfers];

    pub(crate) fn words(self) -> &'static str {
        match self {
            PassName::WeightGradients => "weight gradients",
            PassName::TensorParallelTransfers => "tensor-parallel transfers",
        }
    }
}

impl Display for PassName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.words())
    }
}

/// What the passes of a rank's training steps have to know.
pub(crate) struct Timing {
    pub(crate) left_out: Vec<PassName>,
    /// Where gradients of parameters lie.
    pub(crate) gradients: BufferId,
    /// Backwards leave weight gradients to regions of their own.
    pub(crate) splits_backward: bool,
    /// A layer's weight gradients may be computed next to the backwards of the layers before it.
    pub(crate) gradients_outlive_layers: bool,
    pub(crate) weights_queue: Rc<SideStream>,
    /// The ranks that share layers.
    pub(crate) tensor_parallel: Option<Rc<dyn Communicator>>,
}

impl Timing {
    /// The passes of a training step, in order.
    pub(crate) fn passes(&self, cx: &StepContext<'_>) -> Vec<Box<dyn StepPass<Region>>> {
        PassName::ALL
            .into_iter()
            .filter(|name| !self.left_out.contains(name))
            .filter_map(|name| self.pass(name, cx))
            .collect()
    }

    fn pass(&self, name: PassName, cx: &StepContext<'_>) -> Option<Box<dyn StepPass<Region>>> {
        let Timing { gradients, splits_backward, gradients_outlive_layers, weights_queue, .. } = self;
        Some(match name {
            PassName::WeightGradients => {
                Box::new(WeightGradients::new(weights_queue, *gradients, *splits_backward, *gradients_outlive_layers))
            }
            PassName::TensorParallelTransfers => {
                Box::new(TensorParallelTransfers::new(cx.side_stream(), self.tensor_parallel.as_ref()?))
            }
        })
    }
}
