//! The activity of a rank's host, as in the watch's reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Choice, choice};

choice! {
    /// The activity of the thread that owns the device.
    pub enum Doing {
        /// Set-up, and the steps that warm up and capture.
        Starts = "starting",
        /// Submitting a step.
        Steps = "submitting a step",
        /// Waiting for the data of a step.
        WaitsForBatch = "waiting for a batch",
        /// Waiting for the device to finish a step.
        WaitsForDevice = "waiting for the device",
        /// Evaluating.
        Evaluates = "evaluating",
        /// Running a step with graphs and without, to compare both.
        Verifies = "verifying graphs",
        /// Writing a checkpoint, a timeline or another file.
        Writes = "writing files",
        /// Waiting for the other ranks.
        WaitsForRanks = "waiting for all ranks",
        /// Ending.
        Ends = "ending",
    }
}

impl Doing {
    /// Whether minutes without progress are normal.
    pub fn is_slow(self) -> bool {
        matches!(self, Doing::Starts | Doing::Verifies | Doing::Writes)
    }
}

/// The current activity of the host, shared between the run and the heartbeat thread. An update costs one store.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The number of changes, and in the lowest byte the index in [`Choice::ALL`].
    state: Arc<AtomicU64>,
}

impl Activity {
    /// Records the activity of the host from now on. Only one thread calls it.
    pub fn set(&self, doing: Doing) {
        let changes = (self.state.load(Ordering::Relaxed) >> 8) + 1;
        self.state.store(changes << 8 | doing as u64, Ordering::Relaxed);
    }

    /// Records progress in the current activity. Any thread may call it.
    pub fn advance(&self) {
        self.state.fetch_add(1 << 8, Ordering::Relaxed);
    }

    /// Records progress of another thread, if the host is `doing` just this: if it does something else, it may hang there.
    pub fn advance_while(&self, doing: Doing) {
        if self.now() == doing {
            self.advance();
        }
    }

    /// Runs `work` as `doing`, and restores the previous activity afterwards.
    pub fn during<T>(&self, doing: Doing, work: impl FnOnce() -> T) -> T {
        let before = self.now();
        self.set(doing);
        let result = work();
        self.set(before);
        result
    }

    /// The current activity.
    pub fn now(&self) -> Doing {
        Doing::ALL[(self.state.load(Ordering::Relaxed) & 0xff) as usize]
    }

    /// The number of changes and of records of progress so far.
    pub fn changes(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_activity_is_restored_and_every_change_counts() {
        let activity = Activity::default();
        assert_eq!((activity.now(), activity.changes()), (Doing::Starts, 0));
        for &doing in Doing::ALL {
            activity.set(doing);
            assert_eq!(activity.now(), doing);
        }
        assert_eq!(activity.during(Doing::WaitsForRanks, || activity.now()), Doing::WaitsForRanks);
        assert_eq!((activity.now(), activity.changes()), (Doing::Ends, 11));
        activity.advance();
        assert_eq!((activity.now(), activity.changes()), (Doing::Ends, 12));
        activity.advance_while(Doing::Writes);
        assert_eq!(activity.changes(), 12, "the host does something else");
        activity.advance_while(Doing::Ends);
        assert_eq!(activity.changes(), 13);
    }
}
