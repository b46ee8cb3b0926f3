//! What a caller tells the manager about its regions.

use std::fmt::{Debug, Display, Formatter};
use std::hash::Hash;
use std::marker::PhantomData;

/// What a caller's regions are: which become graphs, which microbatch each belongs to, and who saved what it reads.
///
/// A region is a named piece of a step, such as the forward of layer 3 for microbatch 1. Regions nest: inside a captured
/// region the inner ones are part of its graph. An answer must follow from the arguments alone, for the manager asks
/// again in every step.
pub trait Policy: 'static {
    /// Names a region. `Display` is its name in errors, graphs and reports.
    type Region: Copy + Eq + Hash + Display + 'static;
    /// What a step is for, such as training or evaluation. Each mode has its own recording, plan and graphs.
    type Mode: Copy + Ord + Debug + 'static;
    /// What a region does in some steps or microbatches and not in others. Each variant of a region has its own graph.
    /// `Display` follows the region in the graph's name; the default variant displays as nothing. A policy without
    /// variants takes [`NoVariant`].
    type Variant: Copy + Eq + Hash + Default + Display + 'static;

    /// Whether the code has a region of its own here. Where not, it runs as part of the region around it.
    fn is_region(&self, _region: Self::Region) -> bool {
        true
    }

    /// Whether the region becomes a graph, or the reason why not. A region inside a captured one is not asked about.
    ///
    /// # Errors
    /// The reason, as the report states it.
    fn captured(&self, _region: Self::Region) -> Result<(), &'static str> {
        Ok(())
    }

    /// The microbatch that the region belongs to; `None` if the step has the region only once.
    fn instance(&self, _region: Self::Region) -> Option<Instance<Self::Region>> {
        None
    }

    /// The variant that the region runs as. All variants of a region take the same buffers, and the same
    /// later regions use them: memory is planned from the first visit.
    fn variant(&self, _mode: Self::Mode, _region: Self::Region, _microbatches: usize) -> Self::Variant {
        Self::Variant::default()
    }

    /// The region whose values [`StepContext::saved`](crate::StepContext::saved) returns here: for a backward the forward
    /// of the same layer and microbatch, for that forward itself. `None` for regions that neither save nor read.
    fn saved_by(&self, _region: Self::Region) -> Option<Self::Region> {
        None
    }

    /// The region whose deferred operations run here: for a region that computes weight gradients the backward of the same
    /// layer and microbatch. A region that defers names itself. Where the answer is `None`,
    /// [`StepContext::defer`](crate::StepContext::defer) runs the operation at once.
    fn deferred_by(&self, _region: Self::Region) -> Option<Self::Region> {
        None
    }

    /// Whether the region's operations on the [branch](crate::StepContext::branch) may go on past its end. Whichever
    /// ends first waits for them: the next region that answers false, the region around both, or the step. Until then
    /// nothing may write tensors that they read, or read tensors that they write. A region with a graph of its own
    /// answers false.
    fn branch_outlives(&self, _region: Self::Region) -> bool {
        false
    }

    /// What regions of this kind are called in the report's list of eager regions.
    fn kind(&self, region: Self::Region) -> String {
        region.to_string()
    }

    /// What a watchdog calls the region while it runs; `None` leaves no mark. Microbatches that share a slot share graphs,
    /// so the name must not contain the microbatch.
    fn mark(&self, region: Self::Region) -> Option<String> {
        Some(self.kind(region))
    }
}

/// The microbatch that a region belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance<R> {
    /// The microbatch, counted from 0.
    pub microbatch: usize,
    /// The same region of microbatch 0. It stands for the region in all microbatches.
    pub first: R,
    /// The group of regions that a microbatch passes through at once, such as a pipeline stage's chunk of layers. Slots
    /// are counted per chunk. 0 where there is only one.
    pub chunk: usize,
}

/// The variant of policies that have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NoVariant;

impl Display for NoVariant {
    fn fmt(&self, _: &mut Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

/// A ready policy: every outermost region becomes a graph, and no region belongs to a microbatch. `R` names regions, for
/// instance `&'static str`.
pub struct CaptureAll<R>(PhantomData<fn() -> R>);

impl<R> Default for CaptureAll<R> {
    fn default() -> CaptureAll<R> {
        CaptureAll(PhantomData)
    }
}

impl<R: Copy + Eq + Hash + Display + 'static> Policy for CaptureAll<R> {
    type Region = R;
    type Mode = &'static str;
    type Variant = NoVariant;
}
