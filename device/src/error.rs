//! The errors of a device. Every message names the thing, the rule and the fix.

use crate::calling::running;

/// The result of a device operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A device error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A capture rule was broken; the code is CUDA's for the same mistake.
    #[error("capture error {}: {detail}. Rule: {}. Fix: {}", rule.code(), rule.rule(), rule.fix())]
    Capture {
        /// The broken rule.
        rule: CaptureRule,
        /// The call that broke the rule, with the call's stream.
        detail: String,
    },
    /// The graph checker found a launch that reads or writes the wrong thing.
    #[error("graph check: {0}")]
    Check(#[from] CheckError),
    /// An operation was given tensors it cannot work on.
    #[error("{op}: {problem}")]
    Operation {
        /// The operation's name.
        op: &'static str,
        /// The mistake, with the shapes.
        problem: String,
    },
    /// A tensor, event or graph of another device was used.
    #[error(
        "{user}: {thing} is another device's. Fix: make it with this device, or copy its values by way of the host"
    )]
    OtherDevice {
        /// The operation or call that used the thing of another device.
        user: String,
        /// The thing that was used.
        thing: String,
    },
    /// There is not enough memory.
    #[error("out of memory: {name} needs {bytes} bytes, {available}. Fix: a smaller micro-batch, or more ranks")]
    OutOfMemory {
        /// The purpose of the memory.
        name: String,
        /// Bytes asked for.
        bytes: usize,
        /// The device's free memory, as it reported it.
        available: String,
    },
    /// An operation other than a move names memory of the host.
    #[error(
        "{op}: buffer `{buffer}` lies on the host. Rule: operations compute in the device's memory, and only `move` \
         copies from and to the host. Fix: move it to a buffer of the device first"
    )]
    OnHost {
        /// The operation, with its region.
        op: String,
        /// The buffer.
        buffer: String,
    },
    /// The GPU's driver or one of its libraries refused a call.
    #[error("{call}: {problem}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The code's name, its number, its meaning, and advice if the user can do something.
        problem: String,
    },
    /// A call that a steady step must not make; see [`SyncDebug`](crate::SyncDebug).
    #[error(
        "{call} in {scope} {does}. Rule: a steady step neither waits for the device nor allocates. \
         Fix: do it before the first step, or after the step"
    )]
    Hinders {
        /// The call.
        call: String,
        /// The region that the call was made in.
        scope: String,
        /// The effect of the call.
        does: &'static str,
    },
    /// A call that reads, waits or allocates was made by the code of a step while it was recorded.
    #[error(
        "{call} while a step is recorded. Rule: a recording runs nothing, so values are not there yet, and what works at \
         once would work outside of the step. Fix: do it before or after the step, or in its place by \
         StepContext::host_call"
    )]
    Recording {
        /// The call.
        call: String,
    },
    /// The code of a custom operation used its device while it ran.
    #[error(
        "{op}: {call} was made while it ran. Rule: an operation works on the tensors that it declares: it does not use \
         its device, allocate, read back or wait. Fix: do it before the operation is submitted, or submit another \
         operation for it"
    )]
    Within {
        /// The operation.
        op: &'static str,
        /// The call.
        call: String,
    },
    /// A tensor was used that has no memory yet.
    #[error(
        "{user}: buffer `{buffer}` has no address yet. Rule: work runs at addresses, and a buffer that a recording took, or \
         that was made while nothing is allocated, has none until it is bound to memory. Fix: do it while the step is \
         recorded, or bind the buffer first (Op::map)"
    )]
    Unbound {
        /// The operation, copy or graph.
        user: String,
        /// The buffer.
        buffer: String,
    },
    /// A communicator failed.
    #[error("{collective} on {communicator}: {problem}")]
    Communication {
        /// The collective.
        collective: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The library's message.
        problem: String,
    },
}

impl Error {
    /// An operation that refuses its tensors.
    pub fn operation(op: &'static str, problem: impl Into<String>) -> Error {
        Error::Operation { op, problem: problem.into() }
    }

    /// A call that code made while it was recorded.
    pub(crate) fn recording(call: impl Into<String>) -> Error {
        Error::Recording { call: call.into() }
    }

    /// A call of the device that the code of an operation made.
    pub(crate) fn within(call: impl Into<String>) -> Error {
        Error::Within { op: running().unwrap_or("a listener"), call: call.into() }
    }

    /// A use of another device's tensor, event or graph.
    pub(crate) fn other_device(user: &str, thing: &str) -> Error {
        Error::OtherDevice { user: user.into(), thing: thing.into() }
    }

    /// An operation that computes in memory of the host.
    pub fn on_host(op: &str, buffer: &str) -> Error {
        Error::OnHost { op: op.into(), buffer: buffer.into() }
    }

    /// A broken capture rule.
    pub fn capture(rule: CaptureRule, detail: impl Into<String>) -> Error {
        Error::Capture { rule, detail: detail.into() }
    }
}

/// The rules of stream capture that users break, by CUDA's error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureRule {
    /// 900: a synchronizing call during capture.
    Synchronization,
    /// 900: memory allocated or freed during capture.
    Allocation,
    /// 900: work on a stream that no capture under way includes. CUDA takes it: it runs once, and no replay repeats it.
    Outside,
    /// 900: a custom operation's call on a GPU did what a capture cannot record.
    Call,
    /// 401: a capture begun on a stream that captures.
    Begun,
    /// 401: the end of a capture on a stream that does not capture.
    NotBegun,
    /// 903: the end of a capture on another stream than the one that it was begun on.
    Unmatched,
    /// 901: a capture that an earlier mistake made invalid.
    Invalidated,
    /// 904: a side stream forked from the capture and not joined.
    Unjoined,
    /// 905: a wait on an event recorded outside the capture.
    Isolation,
    /// 906: work on the legacy default stream.
    Implicit,
    /// 907: an event recorded inside a capture used outside it.
    CapturedEvent,
}

impl CaptureRule {
    /// CUDA's error code (`cudaErrorStreamCapture...`) for this mistake.
    pub fn code(self) -> u32 {
        match self {
            CaptureRule::Begun | CaptureRule::NotBegun => 401,
            CaptureRule::Synchronization | CaptureRule::Allocation | CaptureRule::Outside | CaptureRule::Call => 900,
            CaptureRule::Invalidated => 901,
            CaptureRule::Unmatched => 903,
            CaptureRule::Unjoined => 904,
            CaptureRule::Isolation => 905,
            CaptureRule::Implicit => 906,
            CaptureRule::CapturedEvent => 907,
        }
    }

    /// The rule in a sentence.
    pub fn rule(self) -> &'static str {
        match self {
            CaptureRule::Synchronization => "the host cannot wait for work that is being recorded, not run",
            CaptureRule::Allocation => "addresses are fixed at capture, so memory is planned before it",
            CaptureRule::Outside => "a replay repeats only the work of the stream that captures and of its forks",
            CaptureRule::Call => {
                "a call in a capture only adds work to the capturing stream: it does not wait, ask for the state of a \
                 stream or event, allocate, free or load a module"
            }
            CaptureRule::Begun => "a stream is part of one capture at a time",
            CaptureRule::NotBegun => "a capture ends on the stream that it was begun on",
            CaptureRule::Unmatched => "a capture ends on the stream that it was begun on",
            CaptureRule::Invalidated => "a capture in which a call failed cannot become a graph",
            CaptureRule::Unjoined => "a stream forked from a capture is joined to it before the capture ends",
            CaptureRule::Isolation => "a captured stream depends only on work captured with it",
            CaptureRule::Implicit => "the legacy default stream waits for all streams, which a capture cannot",
            CaptureRule::CapturedEvent => {
                "an event recorded in a capture stands for a graph node, not for work that ran"
            }
        }
    }

    /// The advice for the user.
    pub fn fix(self) -> &'static str {
        match self {
            CaptureRule::Synchronization => "do it before the capture begins, or after the graph's launch",
            CaptureRule::Allocation => "allocate before the region, or take the buffer from the region's plan",
            CaptureRule::Call => {
                "do that in a warm-up, before the capture. Memory that the call needs is a tensor that the operation \
                 declares to write"
            }
            CaptureRule::Begun => "end that capture first (Stream::end_capture), or begin this one on another stream",
            CaptureRule::NotBegun => "call Stream::begin_capture on this stream first",
            CaptureRule::Unmatched => "wait on that stream for this one, and end the capture there",
            CaptureRule::Outside => "record an event on the capturing stream and wait for it on this one",
            CaptureRule::Invalidated => "fix the first error reported for this capture",
            CaptureRule::Unjoined => "record an event on the side stream and wait for it on the capturing stream",
            CaptureRule::Isolation => "wait for outside events before the capture begins",
            CaptureRule::Implicit => "submit to a named stream",
            CaptureRule::CapturedEvent => "record the event again after the graph's launch",
        }
    }
}

/// A hazard the graph checker proved, with the two operations and the buffer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// Two operations that may run at once touch the same bytes, one of them writing.
    #[error(
        "race on buffer `{buffer}`: `{first}` and `{second}` on different streams are not ordered. \
         Fix: record an event after `{first}` and wait for it before `{second}`"
    )]
    Race {
        /// The buffer's name.
        buffer: String,
        /// The operation submitted first.
        first: String,
        /// The operation submitted second.
        second: String,
    },
    /// The bytes of a buffer were given to another one before this read.
    #[error(
        "read after reuse: `{reader}` reads buffer `{buffer}`, but `{writer}` wrote `{owner}` over it. \
         Fix: keep the buffer alive until its last reader, or replay in the recorded order"
    )]
    Overwritten {
        /// The operation that reads.
        reader: String,
        /// The buffer that the operation means to read.
        buffer: String,
        /// The operation that wrote over the buffer.
        writer: String,
        /// The buffer that lies there now.
        owner: String,
    },
    /// A result was written anew before this read.
    #[error(
        "stale result: `{reader}` reads the result `{buffer}` of an earlier run, and `{writer}` has written it anew. Rule: a \
         result stays until the next run. Fix: read it before that, or copy it (Capture::run_into)"
    )]
    Kept {
        /// The operation that reads.
        reader: String,
        /// The result.
        buffer: String,
        /// The operation that wrote the result anew.
        writer: String,
    },
    /// A buffer is read that nothing has written.
    #[error("read of nothing: `{reader}` reads buffer `{buffer}`, which no operation has written. Fix: fill it first")]
    Uninitialized {
        /// The operation that reads.
        reader: String,
        /// The buffer.
        buffer: String,
    },
    /// Memory that was given back is used.
    #[error(
        "use after free: `{user}` uses buffer `{buffer}`, whose memory was given back. \
         Fix: keep the buffer for as long as a graph or an operation refers to it"
    )]
    Freed {
        /// The operation or graph.
        user: String,
        /// The buffer.
        buffer: String,
    },
    /// A region was replayed at another position than the one at which it was recorded.
    #[error(
        "replay out of order: step position {position} expects `{expected}`, got `{actual}`. \
         Fix: run every step's regions in the order of the recorded one, or reset the manager"
    )]
    OutOfOrder {
        /// Index in the recorded order.
        position: usize,
        /// The region that was recorded there.
        expected: String,
        /// The region that was replayed there.
        actual: String,
    },
}
