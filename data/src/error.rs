//! Errors of data during a run.

/// Data cannot be read any more, changed, or cannot be written. Everything looked right when the run began: exit code 3.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}. Fix: {fix}")]
pub struct DataError {
    /// The event, with the name of the file.
    pub what: String,
    /// Advice for the user.
    pub fix: String,
}
