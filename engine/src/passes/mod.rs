//! When the work of a step is done, and beside what. The step's code says what is computed; passes decide on time.

mod buckets;
mod tensor_parallel;
mod weight_gradients;

use buckets::Buckets;
use tensor_parallel::TensorParallelTransfers;
use weight_gradients::WeightGradients;

use std::fmt::{Display, Formatter};
use std::rc::Rc;

use device::{BufferId, Communicator};
use graph_manager::{SideStream, StepPass};

use crate::gradient_sync::DataParallelSync;
use crate::regions::{Pass, Region};
use crate::step_policy::StepContext;

/// A pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassName {
    /// Gradients of weights on a queue of their own, or in the regions that a split backward has for them.
    WeightGradients,
    /// Transfers between ranks that share layers beside products.
    TensorParallelTransfers,
    /// Sums of gradients over data-parallel ranks, and gathers of weights, next to layers.
    Buckets,
}

impl PassName {
    /// All passes, in the order in which they are applied.
    pub const ALL: [PassName; 3] = [PassName::WeightGradients, PassName::TensorParallelTransfers, PassName::Buckets];

    pub(crate) fn words(self) -> &'static str {
        match self {
            PassName::WeightGradients => "weight gradients",
            PassName::TensorParallelTransfers => "tensor-parallel transfers",
            PassName::Buckets => "buckets",
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
    pub(crate) buckets_queue: Rc<SideStream>,
}

impl Timing {
    /// The regions that complete gradients, in the last microbatch.
    pub(crate) fn completing(&self) -> Pass {
        if self.splits_backward { Pass::WeightGradients } else { Pass::Backward }
    }

    /// The passes of a step, in order. `ranks` share the batch.
    pub(crate) fn passes(
        &self,
        cx: &StepContext<'_>,
        ranks: Option<&DataParallelSync>,
    ) -> Vec<Box<dyn StepPass<Region>>> {
        let pass = |name: PassName| -> Option<Box<dyn StepPass<Region>>> {
            Some(match name {
                PassName::WeightGradients => Box::new(WeightGradients::new(
                    &self.weights_queue,
                    self.gradients,
                    self.splits_backward,
                    self.gradients_outlive_layers,
                )),
                PassName::TensorParallelTransfers => {
                    Box::new(TensorParallelTransfers::new(cx.side_stream(), self.tensor_parallel.as_ref()?))
                }
                PassName::Buckets => Box::new(Buckets::new(&self.buckets_queue, cx, ranks?, self.completing())),
            })
        };
        PassName::ALL.into_iter().filter(|name| !self.left_out.contains(name)).filter_map(pass).collect()
    }
}
