//! Points in time as text.

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;

/// The last second of the year 9999, in seconds since 1970.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// A time in UTC, such as `2026-02-01T12:00:00Z`. RFC 3339 has four digits for a year, and a clock may be wrong: a time that it
/// cannot write is `before 1970` or `after 9999`.
pub fn rfc3339(time: SystemTime) -> String {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Err(_) => "before 1970".into(),
        Ok(since) if since.as_secs() > LAST.as_secs() => "after 9999".into(),
        Ok(_) => format_rfc3339_seconds(time).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_off_is_no_panic() {
        let epoch = SystemTime::UNIX_EPOCH;
        let second = Duration::from_secs(1);
        for (time, text) in [
            (epoch, "1970-01-01T00:00:00Z"),
            (epoch - second, "before 1970"),
            (epoch - second / 1000, "before 1970"),
            (epoch + LAST, "9999-12-31T23:59:59Z"),
            (epoch + LAST + second - Duration::from_nanos(1), "9999-12-31T23:59:59Z"),
            (epoch + LAST + second, "after 9999"),
            (epoch + 1000 * LAST, "after 9999"),
        ] {
            assert_eq!(rfc3339(time), text);
        }
    }
}
