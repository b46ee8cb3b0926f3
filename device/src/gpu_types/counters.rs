//! Counts of actions that a steady step must not do.

/// Counts of actions that a steady step must not do, and of its launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Allocations of device or pinned memory.
    pub allocations: u64,
    /// Waits of the host for a stream or the whole device.
    pub synchronizations: u64,
    /// Copies that the host waited for.
    pub blocking_copies: u64,
    /// Waits of the host for values it had asked for, such as a step's metrics.
    pub metric_waits: u64,
    /// Waits of the host until pinned memory could be filled again.
    pub staging_waits: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Operations submitted one by one, to run or to be captured. A graph's launch counts none.
    pub eager_operations: u64,
}
