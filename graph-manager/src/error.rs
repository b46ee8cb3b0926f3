//! Errors of a step.

use crate::call_order::Call;
use crate::options::Mempool;

/// The result of a step, a region or a plan.
pub type Result<T> = std::result::Result<T, Error>;

/// A graph manager's error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The device refused an operation, or the checker found a hazard.
    #[error("{region}: {source}")]
    Device {
        /// The region of the error; `step` outside of any.
        region: String,
        /// The device's error.
        source: device::Error,
    },
    /// A recording of a step does not fit the plan of an earlier one, or a call has other inputs than when recorded.
    #[error("{region}: {problem}. Rule: a step repeats the recorded one. Fix: {fix}")]
    Changed {
        /// The region.
        region: String,
        /// The difference.
        problem: String,
        /// The remedy.
        fix: &'static str,
    },
    /// The code of a step would now do something else than the recorded list.
    #[error(
        "{region}: {problem}. Rule: a step repeats the list that its code made once. Fix: keep what changes in device \
         memory, such as a control block or a static buffer, or do it in a host call (StepContext::host_call)"
    )]
    Frozen {
        /// The region.
        region: String,
        /// The operation and the difference.
        problem: String,
    },
    /// Graphed layers were called in another order than the order of the capture.
    #[error(
        "call {position} of a step was the {made}, and the order has the {due} there. Rule: graphed layers share memory in \
         the order of their capture, so they are called in this order; calls are counted from 0 in each step. Fix: call the \
         {due}, begin anew after a step that was given up (GraphedCallables::begin_step), or give graph_callables the order of \
         your calls (CallOrder::recorded)"
    )]
    OutOfOrder {
        /// The place of that call in the order.
        position: usize,
        /// The call that was made.
        made: Call,
        /// The call that is due.
        due: Call,
    },
    /// A captured region works on a stream that the region's graph does not include: a replay would leave this work
    /// out.
    #[error(
        "{region}: `{operation}` was submitted to stream `{stream}`, and a replay would leave it out. Rule: a captured \
         region works on its own stream and on streams that it forks. Fix: use StepContext::fork, or record an event on the \
         region's stream and wait for it on `{stream}` within the region; give a Capture inside a region a Pool on the \
         region's stream"
    )]
    LeftOut {
        /// The region.
        region: String,
        /// The operation that was submitted.
        operation: &'static str,
        /// The stream that the operation was submitted to.
        stream: String,
    },
    /// The planned memory is not there.
    #[error(
        "out of memory: {area} needs {}, {available}. The plan needs {} in all, with mempool {other:?} {}. \
         Fix: {}a smaller microbatch, fewer microbatches in flight, or recompute in backward",
        mib(*bytes), mib(*planned), mib(*with_other),
        if with_other < planned { format!("mempool {other:?}, ") } else { String::new() }
    )]
    OutOfMemory {
        /// The area that could not be allocated.
        area: String,
        /// The area's size.
        bytes: usize,
        /// The available memory, in the device's words.
        available: String,
        /// Bytes of the whole plan.
        planned: usize,
        /// The other pool.
        other: Mempool,
        /// Bytes of the whole plan with the other pool.
        with_other: usize,
    },
    /// The manager was used in a way that the manager's settings do not allow.
    #[error("{problem}. Fix: {fix}")]
    Usage {
        /// The mistake.
        problem: String,
        /// The remedy.
        fix: &'static str,
    },
}

pub(crate) fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / 1048576.0)
}

impl Error {
    pub(crate) fn usage(problem: impl Into<String>, fix: &'static str) -> Error {
        Error::Usage { problem: problem.into(), fix }
    }

    pub(crate) fn changed(region: impl std::fmt::Display, problem: String, fix: &'static str) -> Error {
        Error::Changed { region: region.to_string(), problem, fix }
    }

    /// Adds the region to an error that names none.
    pub(crate) fn within(self, region: impl std::fmt::Display) -> Error {
        match self {
            Error::Device { region: outside, source } if outside == OUTSIDE => {
                Error::Device { region: region.to_string(), source }
            }
            named => named,
        }
    }
}

/// Stands for the region outside of all regions.
pub(crate) const OUTSIDE: &str = "step";

impl From<device::Error> for Error {
    fn from(source: device::Error) -> Error {
        Error::Device { region: OUTSIDE.into(), source }
    }
}
