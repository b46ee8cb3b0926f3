//! Calls that a steady step must not make, because they wait for the device or allocate. Messages name the caller.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::{Error, Result};

/// The reaction to a call that makes the host wait for the device, or that allocates. It is meant to be set around
/// steps that should do neither. (As `torch.cuda.set_sync_debug_mode`.)
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

/// The effect of a call that a steady step must not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostlyCall {
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
    pub(crate) fn set(&self, mode: SyncDebug) {
        self.mode.set(mode);
    }

    /// The warnings so far.
    pub(crate) fn told(&self) -> Vec<String> {
        self.told.borrow().iter().cloned().collect()
    }

    /// Whether calls are named.
    pub(crate) fn is_on(&self) -> bool {
        self.mode.get() != SyncDebug::Off
    }

    /// A call that waits or allocates.
    ///
    /// # Errors
    /// [`Error::Hinders`] if it is to fail.
    pub(crate) fn note(&self, cost: CostlyCall, call: String, scope: &str) -> Result<()> {
        let does = match cost {
            CostlyCall::Waits => "makes the host wait",
            CostlyCall::Allocates => "allocates memory",
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
