//! The names of passes.

use std::fmt::{Display, Formatter};

/// A pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassName {
    /// Saved tensors on the host between forward and backward.
    Present,
    /// State of the optimizer on the host, moved to the device around the optimizer's update.
    HostState,
    /// Forwards next to backwards of other microbatches.
    Overlap,
    /// Gradients of weights on a separate queue, or in the regions that a split backward has for weight gradients.
    WeightGradients,
    /// Transfers between ranks that share layers beside products.
    TensorParallelTransfers,
    /// Rows of experts that ranks exchange, beside products.
    ExpertRows,
    /// Sums of gradients over data-parallel ranks, and gathers of weights, next to layers.
    Buckets,
    /// Receives from other stages ahead of the tasks that need the values.
    StageTransfers,
}

impl PassName {
    /// All passes. They are applied in this order.
    pub const ALL: [PassName; 8] = [
        PassName::Present,
        PassName::HostState,
        PassName::Overlap,
        PassName::WeightGradients,
        PassName::TensorParallelTransfers,
        PassName::ExpertRows,
        PassName::Buckets,
        PassName::StageTransfers,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            PassName::Present => "present",
            PassName::HostState => "state on the host",
            PassName::Overlap => "overlap",
            PassName::WeightGradients => "weight gradients",
            PassName::TensorParallelTransfers => "tensor-parallel transfers",
            PassName::ExpertRows => "rows of experts",
            PassName::Buckets => "buckets",
            PassName::StageTransfers => "stage transfers",
        }
    }
}

impl Display for PassName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.words())
    }
}
