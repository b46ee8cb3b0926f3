//! What goes wrong with data while a run uses them.

/// Data cannot be read any more, changed, or cannot be written. Everything looked right when the run began: exit code 3.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}. Fix: {fix}")]
pub struct DataError {
    /// What happened, to which file.
    pub what: String,
    /// What to do.
    pub fix: String,
}
