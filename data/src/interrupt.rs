//! Work on a file that a request to end interrupts.

use std::path::Path;

use common::Stop;

use super::DataError;

/// Fails if the process was asked to end while it writes `output`. The caller removes what it began, as on any other error.
///
/// # Errors
/// The process was asked to end.
pub fn go_on(stop: &Stop, output: &Path) -> Result<(), DataError> {
    if !stop.is_asked() {
        return Ok(());
    }
    Err(DataError { what: format!("interrupted: {} was not written", output.display()), fix: "start again".into() })
}
