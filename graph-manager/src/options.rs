//! The settings of a manager.

use std::num::NonZeroUsize;

use device::CaptureMode;

/// How memory is shared between microbatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mempool {
    /// One plan over the whole step: least memory, a graph per microbatch, anew for each number of microbatches.
    Single,
    /// A slot for the tensors that a microbatch saves: a graph per slot, any number of microbatches.
    PerMicrobatch,
}

/// When the code of a step is called again, without work, and the list compared with the recorded one. This finds
/// inputs, host values and branches that have changed since: a list cannot follow such a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckReplays {
    /// Never, and random numbers that repeat are not told.
    Never,
    /// Before a list is first run again. This takes as long as its recording.
    #[default]
    Once,
    /// Before a list is first run again, and before each step with graphs. Slow.
    Always,
}

/// A manager's settings.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Whether to capture at all. If not, the same work runs in the same memory, submitted anew each step.
    pub enable: bool,
    /// How memory is shared.
    pub mempool: Mempool,
    /// Neighbouring regions share boundary buffers. If not, each captured region copies its inputs into buffers of its
    /// own before it is launched. Other code may then run between regions and pass tensors at changing addresses.
    pub share_io_buffers: bool,
    /// Eager steps before the first capture; at least 1.
    pub warmup_steps: usize,
    /// Whether buffers are overwritten with poison after the last use, so that a stray read shows in the numbers.
    pub poison: bool,
    /// When the code of a step is called again, to compare the list with the recorded one.
    pub check_replays: CheckReplays,
    /// The largest number of plans that are kept with graphs, by default 64. There is one plan per mode, and with
    /// [`Mempool::Single`] one per mode and number of microbatches. If one more comes, the one that has not run for the
    /// longest time is forgotten.
    pub plan_limit: NonZeroUsize,
    /// The calls of other code, such as another crate's within an operation, that the driver refuses while a region is
    /// captured.
    pub capture_mode: CaptureMode,
}

impl Default for ManagerOptions {
    fn default() -> ManagerOptions {
        ManagerOptions {
            enable: true,
            mempool: Mempool::PerMicrobatch,
            share_io_buffers: true,
            warmup_steps: 1,
            poison: false,
            check_replays: CheckReplays::default(),
            plan_limit: const { NonZeroUsize::new(64).unwrap() },
            capture_mode: CaptureMode::default(),
        }
    }
}

impl ManagerOptions {
    /// For graphs that copy inputs, with one plan over the whole step.
    pub(crate) fn for_one_plan(warmup_steps: usize) -> ManagerOptions {
        let (mempool, share_io_buffers) = (Mempool::Single, false);
        ManagerOptions { mempool, share_io_buffers, warmup_steps, ..ManagerOptions::default() }
    }
}
