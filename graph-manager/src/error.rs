//! What can go wrong in a step.

/// The result of a step, a region or a plan.
pub type Result<T> = std::result::Result<T, Error>;

/// A graph manager's error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The device refused an operation, or the checker found a hazard.
    #[error("{region}: {source}")]
    Device {
        /// The region it happened in; `step` outside of any.
        region: String,
        /// What the device said.
        source: device::Error,
    },
    /// A step differs from its recording.
    #[error("{region}: {problem}. Rule: a step repeats the recorded one. Fix: {fix}")]
    Changed {
        /// The region.
        region: String,
        /// What differs.
        problem: String,
        /// What to do.
        fix: &'static str,
    },
    /// The manager was used in a way its settings do not allow.
    #[error("{problem}. Fix: {fix}")]
    Usage {
        /// What was done.
        problem: String,
        /// What to do.
        fix: &'static str,
    },
}

impl From<device::Error> for Error {
    fn from(source: device::Error) -> Error {
        Error::Device { region: "step".into(), source }
    }
}
