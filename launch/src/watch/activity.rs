//! What a rank's host does, as far as others need to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What the thread that owns the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doing {
    /// Set-up, and the steps that warm up and capture.
    Starts,
    /// It submits a step.
    Steps,
    /// It waits for the data of a step.
    WaitsForBatch,
    /// It waits for the device to finish a step.
    WaitsForDevice,
    /// It evaluates.
    Evaluates,
    /// It writes a checkpoint, a timeline, or what else is written once.
    Writes,
    /// It waits for the other ranks.
    WaitsForRanks,
    /// It ends.
    Ends,
}

const ALL: [Doing; 8] = [
    Doing::Starts,
    Doing::Steps,
    Doing::WaitsForBatch,
    Doing::WaitsForDevice,
    Doing::Evaluates,
    Doing::Writes,
    Doing::WaitsForRanks,
    Doing::Ends,
];

impl Doing {
    /// Whether it may take minutes without any sign of progress.
    pub fn is_slow(self) -> bool {
        matches!(self, Doing::Starts | Doing::Writes)
    }
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Doing::Starts => "starting",
            Doing::Steps => "submitting a step",
            Doing::WaitsForBatch => "waiting for a batch",
            Doing::WaitsForDevice => "waiting for the device",
            Doing::Evaluates => "evaluating",
            Doing::Writes => "writing files",
            Doing::WaitsForRanks => "waiting for all ranks",
            Doing::Ends => "ending",
        })
    }
}

/// What the host does, shared with who reports it. Costs a store to keep current.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The number of changes, and in the lowest byte the place in [`ALL`].
    state: Arc<AtomicU64>,
}

impl Activity {
    /// From now on the host does this. One thread says so.
    pub fn set(&self, doing: Doing) {
        let changes = (self.state.load(Ordering::Relaxed) >> 8) + 1;
        self.state.store(changes << 8 | doing as u64, Ordering::Relaxed);
    }

    /// It has come further in what it does. Any thread may say so.
    pub fn advance(&self) {
        self.state.fetch_add(1 << 8, Ordering::Relaxed);
    }

    /// Does `work` as `doing`, and then goes on with what it did before.
    pub fn during<T>(&self, doing: Doing, work: impl FnOnce() -> T) -> T {
        let before = self.now();
        self.set(doing);
        let result = work();
        self.set(before);
        result
    }

    /// What it does.
    pub fn now(&self) -> Doing {
        ALL[(self.state.load(Ordering::Relaxed) & 0xff) as usize]
    }

    /// How often it has begun something, or come further in it.
    pub fn changes(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_before_goes_on_after_and_every_change_counts() {
        let activity = Activity::default();
        assert_eq!((activity.now(), activity.changes()), (Doing::Starts, 0));
        for doing in ALL {
            activity.set(doing);
            assert_eq!(activity.now(), doing);
        }
        assert_eq!(activity.during(Doing::WaitsForRanks, || activity.now()), Doing::WaitsForRanks);
        assert_eq!((activity.now(), activity.changes()), (Doing::Ends, 10));
        activity.advance();
        assert_eq!((activity.now(), activity.changes()), (Doing::Ends, 11));
    }
}
