//! Settings of the watch.

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
    /// Where the monitor listens: `host` or `host:port`. `None` finds an address.
    pub address: Option<String>,
}

impl Default for WatchSettings {
    fn default() -> WatchSettings {
        let seconds = Duration::from_secs;
        WatchSettings { heartbeat: seconds(1), timeout: seconds(45), setup_timeout: seconds(600), address: None }
    }
}
