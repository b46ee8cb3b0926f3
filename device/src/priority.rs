//! The priority of a stream.

/// A GPU serves the stream of higher priority first when two have work that is ready. The host device has no use for
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Served last.
    Background,
    /// Served after a stream of transfers.
    #[default]
    Compute,
    /// Served first.
    Transfer,
}
