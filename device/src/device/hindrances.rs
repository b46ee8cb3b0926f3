//! Calls of a step that wait for the device or allocate, as a device notices them.

use std::rc::Rc;

use super::{Core, Device};
use crate::Result;
use crate::cuda::Counters;
use crate::sync_debug::{Hindrance, SyncDebug, SyncWatch};

impl Device {
    /// What happens from now on at calls that wait for the device or allocate. Before it is set, they do so in silence.
    /// During a capture they fail in any case.
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
    pub(crate) fn hinders(&self, hindrance: Hindrance, call: impl FnOnce() -> String) -> Result<()> {
        if self.sync_watch.is_on() { self.sync_watch.note(hindrance, call(), &self.scope) } else { Ok(()) }
    }

    /// What was counted so far on a GPU, if calls are named.
    pub(crate) fn counted(&self) -> Option<Counters> {
        if self.sync_watch.is_on() { self.backend.counters() } else { None }
    }

    /// After a call that waits or allocates only at times: names it if it did since `before` was counted.
    ///
    /// # Errors
    /// [`Error::Hinders`] if it is to fail.
    pub(crate) fn hindered_since(&self, before: Option<Counters>, call: impl FnOnce() -> String) -> Result<()> {
        let (Some(before), Some(now)) = (before, self.backend.counters()) else { return Ok(()) };
        let waits = |counters: &Counters| {
            counters.synchronizations + counters.blocking_copies + counters.metric_waits + counters.staging_waits
        };
        if now.allocations > before.allocations {
            return self.hinders(Hindrance::Allocates, call);
        }
        if waits(&now) > waits(&before) { self.hinders(Hindrance::Waits, call) } else { Ok(()) }
    }

    /// The setting, for values that are copied to the host.
    pub(crate) fn sync_watch(&self) -> Rc<SyncWatch> {
        self.sync_watch.clone()
    }
}
