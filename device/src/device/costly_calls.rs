//! Calls of a step that wait for the device or allocate, as a device notices them.

use std::rc::Rc;

use super::{Core, Device};
use crate::Result;
use crate::gpu_types::Counters;
use crate::sync_debug::{CostlyCall, SyncDebug, SyncWatch};

impl Device {
    /// Sets the reaction to calls that wait for the device or allocate. Before it is set, they do so in silence. During
    /// a capture they fail in any case.
    pub fn set_sync_debug(&self, mode: SyncDebug) {
        self.core().sync_watch.set(mode);
    }

    /// The calls that [`SyncDebug::Warn`] has named so far, with their regions.
    pub fn sync_warnings(&self) -> Vec<String> {
        self.core().sync_watch.told()
    }
}

impl Core {
    /// Before a call that waits or allocates.
    ///
    /// # Errors
    /// [`Error::Hinders`] if it is to fail.
    pub(crate) fn hinders(&self, cost: CostlyCall, call: impl FnOnce() -> String) -> Result<()> {
        if self.sync_watch.is_on() { self.sync_watch.note(cost, call(), &self.scope) } else { Ok(()) }
    }

    /// The counts so far on a GPU, if calls are named.
    pub(crate) fn counted(&self) -> Option<Counters> {
        if self.sync_watch.is_on() { self.backend.counters() } else { None }
    }

    /// Called after a call that waits or allocates only at times. Names the call if a count has grown since `before`.
    ///
    /// # Errors
    /// [`Error::Hinders`] if it is to fail.
    pub(crate) fn hindered_since(&self, before: Option<Counters>, call: impl FnOnce() -> String) -> Result<()> {
        let (Some(before), Some(now)) = (before, self.backend.counters()) else { return Ok(()) };
        let waits = |counters: &Counters| {
            counters.synchronizations + counters.blocking_copies + counters.metric_waits + counters.staging_waits
        };
        if now.allocations > before.allocations {
            return self.hinders(CostlyCall::Allocates, call);
        }
        if waits(&now) > waits(&before) { self.hinders(CostlyCall::Waits, call) } else { Ok(()) }
    }

    /// The setting, for values that are copied to the host.
    pub(crate) fn sync_watch(&self) -> Rc<SyncWatch> {
        self.sync_watch.clone()
    }
}
