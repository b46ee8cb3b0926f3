//! Work on a file that a signal ends: it stops soon, and what was begun is removed as on any other error.

use std::path::Path;

use super::DataError;
use crate::signals::{Stop, listen};

/// What SIGINT and SIGTERM ask for from now on.
///
/// # Errors
/// What the operating system said.
pub fn interruption() -> Result<Stop, DataError> {
    let stop = listen().map_err(|error| DataError {
        what: format!("signals cannot be handled: {error}"),
        fix: "raise the limits of this process".into(),
    })?;
    stop.heed();
    Ok(stop)
}

/// Fails once that is asked for; `output` was to be written.
///
/// # Errors
/// The work is interrupted.
pub fn go_on(stop: &Stop, output: &Path) -> Result<(), DataError> {
    if !stop.is_asked() {
        return Ok(());
    }
    Err(DataError { what: format!("interrupted: {} was not written", output.display()), fix: "start again".into() })
}
