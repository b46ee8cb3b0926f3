//! Settings of the watch.

use std::path::PathBuf;
use std::time::Duration;

/// When a rank counts as failed.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchSettings {
    /// The interval of heartbeats. Zero turns the watch off.
    pub heartbeat: Duration,
    /// A rank that sends nothing, or makes no progress in a step, for this long is at fault.
    pub timeout: Duration,
    /// The limit for progress at the start, in warm-up, and while files are written. At least `timeout`.
    pub setup_timeout: Duration,
    /// The address for the monitor to listen at: `host` or `host:port`. `None` finds an address.
    pub address: Option<String>,
    /// The file in which rank 0 keeps the state of all ranks, for people and programs outside of the run.
    pub file: Option<PathBuf>,
}

impl Default for WatchSettings {
    fn default() -> WatchSettings {
        let seconds = Duration::from_secs;
        let (timeout, setup_timeout) = (seconds(45), seconds(600));
        WatchSettings { heartbeat: seconds(1), timeout, setup_timeout, address: None, file: None }
    }
}
