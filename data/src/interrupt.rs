//! Requests to end while a file is written.

use std::path::Path;

use common::Stop;

use crate::error::DataError;

/// Fails if the process was asked to end during the writing of `output`. The caller removes the partial output, as on any
/// error.
///
/// # Errors
/// The process was asked to end.
pub fn ensure_not_interrupted(stop: &Stop, output: &Path) -> Result<(), DataError> {
    if !stop.is_asked() {
        return Ok(());
    }
    Err(DataError { what: format!("interrupted: {} was not written", output.display()), fix: "start again".into() })
}
