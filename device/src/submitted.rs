//! What a stream does with an operation that is submitted to it.

/// What a stream does with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// The operation runs, or is traced.
    ToRun,
    /// A capture records the operation.
    ToCapture,
}
