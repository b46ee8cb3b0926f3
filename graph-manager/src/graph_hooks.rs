//! Code of the caller's that the host runs at the turning points of graphs.

/// Called by the host at the turning points of a graph. `graph` is its name: that of its region. Give them to
/// [`Pool::with_hooks`](crate::Pool::with_hooks). Each method does nothing unless you write it.
pub trait GraphHooks {
    /// The region is about to be captured.
    fn before_capture(&self, _graph: &str) {}

    /// All operations of the region are captured. The stream still captures, so submit nothing to it. Next, the driver
    /// makes a graph of them that can be launched.
    fn before_instantiate(&self, _graph: &str) {}

    /// The graph can be launched. It has so many operations.
    fn after_instantiate(&self, _graph: &str, _nodes: usize) {}

    /// The graph is about to be launched, for the first time right after its capture. A graph that becomes a part of
    /// another, because a [`Capture`](crate::Capture) runs inside a region, is not launched itself.
    fn before_replay(&self, _graph: &str) {}

    /// The graph was launched. Its work may still be under way.
    fn after_replay(&self, _graph: &str) {}

    /// The graph is about to be given back to the driver.
    fn before_drop(&self, _graph: &str) {}
}
