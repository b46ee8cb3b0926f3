//! SIGINT and SIGTERM, for commands that write files.

use common::Stop;
use data::DataError;
use launch::signals::listen;

/// Listens for SIGINT and SIGTERM from now on.
///
/// # Errors
/// Operating system errors.
pub(super) fn interruption() -> Result<Stop, DataError> {
    let stop = listen().map_err(|error| DataError {
        what: format!("signals cannot be handled: {error}"),
        fix: "raise the limits of this process".into(),
    })?;
    stop.heed();
    Ok(stop)
}
