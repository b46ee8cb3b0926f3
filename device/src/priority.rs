//! The priority of a stream.

/// Which of two streams a GPU serves first when both have work that is ready. The host device has no use for it.
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
