//! A caller's description of its regions.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;

/// Describes a caller's regions: which become graphs, and to which microbatch each belongs.
///
/// A region is a named part of a step, such as the forward of layer 3 for microbatch 1. Regions nest: inside a captured
/// region the inner ones are part of its graph. An answer must follow from the arguments alone.
pub trait Policy: 'static {
    /// Names a region. `Display` is its name in errors, graphs and reports.
    type Region: Copy + Eq + Hash + Display + 'static;
    /// The purpose of a step, such as training or evaluation. Each mode has its own recording, plan and graphs.
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

    /// The name of regions of this kind in the report's list of eager regions.
    fn kind(&self, region: Self::Region) -> String {
        region.to_string()
    }

    /// The region's name for a watchdog while it runs; `None` leaves no mark. Microbatches that share a slot share
    /// graphs, so the name must not contain the microbatch.
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
    /// are counted per chunk. 0 if there is only one.
    pub chunk: usize,
}

/// A ready policy: every outermost region becomes a graph, and no region belongs to a microbatch. `R` names regions,
/// for instance `&'static str`.
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
