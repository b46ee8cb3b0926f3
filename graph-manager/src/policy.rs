//! What a caller tells the manager about its regions.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;

/// What a caller's regions are: which become graphs, and which microbatch each belongs to.
///
/// A region is a named piece of a step, such as the forward of layer 3 for microbatch 1. Regions nest: inside a captured
/// region the inner ones are part of its graph. An answer must follow from the arguments alone.
pub trait Policy: 'static {
    /// Names a region. `Display` is its name in errors, graphs and reports.
    type Region: Copy + Eq + Hash + Display + 'static;
    /// What a step is for, such as training or evaluation. Each mode has its own recording, plan and graphs.
    type Mode: Copy + Ord + Debug + 'static;

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
}
