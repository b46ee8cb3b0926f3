//! Calls that a steady step must not make, because they wait for the device or allocate: who makes them is named.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::cuda::Counters;
use crate::device::Core;
use crate::{Device, Error, Result};

/// What happens at a call that makes the host wait for the device, or that allocates. It is meant to be set around steps that
/// should do neither. (As `torch.cuda.set_sync_debug_mode`.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncDebug {
    /// Nothing.
    #[default]
    Off,
    /// The call is named in a warning, once for each region.
    Warn,
    /// The call fails with [`Error::Hinders`].
    Error,
}

/// What a call does that a steady step must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    Waits,
    Allocates,
}

/// The setting, shared by a device and the values that it copies to the host.
#[derive(Default)]
pub(crate) struct SyncWatch {
    mode: Cell<SyncDebug>,
    /// The warnings so far.
    told: RefCell<BTreeSet<String>>,
}

impl SyncWatch {
    /// Whether calls are named.
    pub(crate) fn is_on(&self) -> bool {
        self.mode.get() != SyncDebug::Off
    }

    /// A call that waits or allocates.
    ///
    /// # Errors
    /// [`Error::Hinders`] if it is to fail.
    pub(crate) fn note(&self, hindrance: Hindrance, call: String, scope: &str) -> Result<()> {
        let does = match hindrance {
            Hindrance::Waits => "makes the host wait",
            Hindrance::Allocates => "allocates memory",
        };
        let scope = if scope.is_empty() { "no region".into() } else { format!("`{scope}`") };
        let error = Error::Hinders { call, scope, does };
        if self.mode.get() == SyncDebug::Error {
            return Err(error);
        }
        let text = error.to_string();
        if self.told.borrow_mut().insert(text.clone()) {
            tracing::warn!("{text}");
        }
        Ok(())
    }
}

impl Device {
    /// What happens from now on at calls that wait for the device or allocate. Before it is set, they do so in silence.
    /// During a capture they fail in any case.
    pub fn set_sync_debug(&self, mode: SyncDebug) {
        self.core().sync_watch.mode.set(mode);
    }

    /// The calls that [`SyncDebug::Warn`] has named so far, with their regions.
    pub fn sync_warnings(&self) -> Vec<String> {
        self.core().sync_watch.told.borrow().iter().cloned().collect()
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
