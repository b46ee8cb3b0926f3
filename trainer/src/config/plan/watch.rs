//! The configured timeouts: the times after which the watch takes a rank for failed.

use std::time::Duration;

use common::UserError;
use launch::watch::WatchSettings;

use crate::config::ParallelConfig;

const DAY: f64 = 86_400.0;
/// Longer times are typing mistakes.
const LONGEST: f64 = 365.0 * DAY;

/// The watch's settings.
///
/// # Errors
/// A time out of its range, or a timeout shorter than two heartbeats.
pub fn watch_settings(parallel: &ParallelConfig) -> Result<WatchSettings, UserError> {
    let (beat, timeout, setup) =
        (parallel.heartbeat_seconds, parallel.distributed_timeout_seconds, parallel.setup_timeout_seconds);
    if !(0.0..=DAY).contains(&beat) {
        return Err(UserError::new(
            format!("parallel.heartbeat_seconds = {beat}"),
            "the time is at least 0 and at most a day",
            "set parallel.heartbeat_seconds = 1, or 0 for none",
        ));
    }
    for (key, value, usual) in [("distributed_timeout_seconds", timeout, 45), ("setup_timeout_seconds", setup, 600)] {
        if !(value > 0.0 && value <= LONGEST) {
            return Err(UserError::new(
                format!("parallel.{key} = {value}"),
                "the time is above 0 and at most 365 days",
                format!("set parallel.{key} = {usual}"),
            ));
        }
    }
    if timeout < 2.0 * beat {
        return Err(UserError::new(
            format!("parallel.distributed_timeout_seconds = {timeout} with parallel.heartbeat_seconds = {beat}"),
            "the timeout is at least two heartbeats long",
            format!("set parallel.distributed_timeout_seconds = {}, or more frequent heartbeats", 2.0 * beat),
        ));
    }
    let seconds = |value: f64| Duration::try_from_secs_f64(value).unwrap_or_default();
    Ok(WatchSettings {
        heartbeat: seconds(beat),
        timeout: seconds(timeout),
        setup_timeout: seconds(setup.max(timeout)),
        address: parallel.monitor_address.clone(),
        file: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    fn settings(flags: &[&str]) -> Result<WatchSettings, String> {
        let mut sources = ConfigSources::default();
        for pair in flags {
            let (key, value) = pair.split_once('=').unwrap();
            sources.set(&format!("parallel.{key}"), value, "test").unwrap();
        }
        watch_settings(&sources.resolve().parallel).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_watchs_own_and_set_up_is_never_shorter_than_a_step() {
        assert_eq!(settings(&[]), Ok(WatchSettings::default()));
        let long = settings(&["distributed_timeout_seconds=1800"]).unwrap();
        assert_eq!((long.timeout, long.setup_timeout), (Duration::from_secs(1800), Duration::from_secs(1800)));
    }

    #[test]
    fn a_time_out_of_range_is_refused_with_a_fix() {
        for (flags, what, fix) in [
            (&["heartbeat_seconds=50"][..], "distributed_timeout_seconds = 45 with", "timeout_seconds = 100,"),
            (&["heartbeat_seconds=-1"], "heartbeat_seconds = -1", "= 1, or 0"),
            (&["distributed_timeout_seconds=0"], "distributed_timeout_seconds = 0", "timeout_seconds = 45"),
            (&["setup_timeout_seconds=1e9"], "setup_timeout_seconds = 1000000000", "timeout_seconds = 600"),
        ] {
            let error = settings(flags).unwrap_err();
            let (said, said_fix) = error.split_once(". Rule: ").unwrap();
            assert!(said.contains(what) && said_fix.contains(fix), "{flags:?}: {error}");
        }
    }
}
