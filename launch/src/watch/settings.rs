//! When a rank is taken to have failed.

use std::time::Duration;

/// When a rank is taken to have failed.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchSettings {
    /// Between two heartbeats; zero for no watch at all.
    pub heartbeat: Duration,
    /// A rank that is not heard of, or makes no progress in a step, for this long is at fault.
    pub timeout: Duration,
    /// The same for progress at the start, in warm-up, and while files are written; at least `timeout`.
    pub setup_timeout: Duration,
    /// Where the monitor listens, `host` or `host:port`; found out if none.
    pub address: Option<String>,
}

impl Default for WatchSettings {
    fn default() -> WatchSettings {
        let seconds = Duration::from_secs;
        WatchSettings { heartbeat: seconds(1), timeout: seconds(45), setup_timeout: seconds(600), address: None }
    }
}
