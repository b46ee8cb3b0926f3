//! Work on a file that a signal ends: it stops soon, and what was begun is removed as on any other error.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::DataError;
use crate::signals::stop_flag;

/// A flag that SIGINT and SIGTERM raise from now on.
///
/// # Errors
/// What the operating system said.
pub fn interruption() -> Result<Arc<AtomicBool>, DataError> {
    stop_flag().map_err(|error| DataError {
        what: format!("signals cannot be handled: {error}"),
        fix: "raise the limits of this process".into(),
    })
}

/// Fails once the flag is up; `output` was to be written.
///
/// # Errors
/// The work is interrupted.
pub fn go_on(stop: &AtomicBool, output: &Path) -> Result<(), DataError> {
    if !stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(DataError { what: format!("interrupted: {} was not written", output.display()), fix: "start again".into() })
}
