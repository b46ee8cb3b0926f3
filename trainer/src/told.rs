//! Lines that are printed, and that a run's log has too.

use std::sync::{Mutex, PoisonError};

use common::terminal::{PRINTED, say, warn};

/// Warnings of before logging began; `None` since then.
static EARLIER: Mutex<Option<Vec<String>>> = Mutex::new(Some(Vec::new()));

/// Prints a notice or a warning on standard error, and adds the line to the log. If logging has not begun, it is written
/// when that begins.
pub fn tell(line: &str) {
    warn(line);
    match EARLIER.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        Some(earlier) => earlier.push(line.into()),
        None => tracing::warn!(target: PRINTED, "{line}"),
    }
}

/// Prints a line of a run's progress on standard output, and adds the line to the log.
pub(crate) fn say_and_log(line: &str) {
    say(line);
    tracing::info!(target: PRINTED, "{line}");
}

/// Writes the lines of before to the log, which begins.
pub(crate) fn log_earlier() {
    let earlier = EARLIER.lock().unwrap_or_else(PoisonError::into_inner).take();
    earlier.into_iter().flatten().for_each(|line| tracing::warn!(target: PRINTED, "{line}"));
}
