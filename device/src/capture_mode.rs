//! The calls that the driver refuses while a stream captures.

/// The calls of other code, such as another crate's, that the driver refuses while a stream captures: those that a replay
/// would not repeat, such as an allocation, a wait, or the question whether an event has passed.
///
/// Calls of that kind by this crate itself are refused in every mode. On the host device the mode changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Refuses such calls on the thread that captures. Other threads go on as always: NCCL's, a loader's, those that copy
    /// a checkpoint.
    #[default]
    ThreadLocal,
    /// Refuses such calls on all threads of the process. A call of another thread fails, and spoils the capture too.
    Global,
    /// Refuses none of the calls but a wait for the stream that captures. What such a call does is done once, at capture,
    /// and memory that it frees or moves may still be in the graph: an operation's call that allocates is not noticed in
    /// this mode.
    Relaxed,
}
