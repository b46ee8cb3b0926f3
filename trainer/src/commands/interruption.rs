//! The request to end, for commands that write files.

use common::Stop;
use data::DataError;
use launch::signals::listen;

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
