//! The time of a few steps: spans on rows, one row per stream, for a viewer such as Perfetto.
//!
//! On the host an operation's span is when it ran, since streams run inline. On CUDA times come from CUPTI
//! ([`crate::cuda`]'s `cupti`), for work inside graphs too, and each operation has a second span: when the host submitted
//! it.

mod chrome;
mod clock;

pub(crate) use clock::{HostClock, OpenSpan};

use crate::Op;

/// Categories of spans of the device's work.
pub const WORK_CATEGORIES: [&str; 4] = ["kernel", "operation", "copy", "set"];

/// A span of time on a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// `stream compute` for the stream `compute`; `host` for spans of the host.
    pub row: String,
    /// The name of the work: `region/operation` if that is known.
    pub name: String,
    /// `kernel`, `copy`, `set`: work of a GPU. `submit`, `launch`: the host submitted an operation, or a graph. `operation`:
    /// the host device ran one. `call`: the host called the driver.
    pub category: &'static str,
    /// Nanoseconds from the timeline's beginning.
    pub start_ns: u64,
    /// The span's length in nanoseconds.
    pub duration_ns: u64,
    /// Other facts, by name: an operation's `shape`, `type`, `flops` and `bytes`; the kernel's symbol; the `graph` that was
    /// launched.
    pub details: Vec<(&'static str, String)>,
    /// The same for all spans of one operation that ran, such as a product of two kernels.
    pub submission: u64,
}

impl Span {
    /// Whether the device worked: not a graph's launch as a whole, and not a call of the host.
    pub fn is_work(&self) -> bool {
        WORK_CATEGORIES.contains(&self.category)
    }

    /// Whether a kernel ran, or the host device's operation in its place.
    pub fn is_kernel(&self) -> bool {
        ["kernel", "operation"].contains(&self.category)
    }

    /// Whether the host was busy with an operation: it submitted it, or ran it in place of a device.
    pub fn is_submission(&self) -> bool {
        ["submit", "operation"].contains(&self.category)
    }

    /// A detail by its name.
    pub fn detail(&self, name: &str) -> Option<&str> {
        self.details.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// The details of an operation's work in a timeline.
pub(crate) fn work_details(op: &Op) -> Vec<(&'static str, String)> {
    let mut details = vec![("shape", op.shape()), ("bytes", op.bytes().to_string())];
    if let Some(dtype) = op.factor_type() {
        details.extend([("type", dtype.to_string()), ("flops", op.flops().to_string())]);
    }
    details
}

/// The spans from [`begin_timeline`](crate::Device::begin_timeline) to [`end_timeline`](crate::Device::end_timeline),
/// by time of start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The timeline's beginning, in nanoseconds since 1970 by this machine's clock. It aligns the timelines of several
    /// ranks.
    pub began_ns: u64,
    /// The spans.
    pub spans: Vec<Span>,
}

/// The row of a stream.
pub(crate) fn stream_row(name: &str) -> String {
    format!("stream {name}")
}

/// The label of a captured operation when its graph is launched for `region`. One graph serves all microbatches of its
/// slot, and its operations are labelled with the microbatch of the capture. The region of the launch takes its place.
pub(crate) fn launched_label(label: &str, graph: &str, region: &str) -> String {
    match label.rsplit_once('/') {
        Some((captured, op)) if !region.is_empty() && graph.starts_with(captured) => format!("{region}/{op}"),
        _ => label.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_of_a_shared_graph_is_named_after_the_region_it_was_launched_for() {
        let (captured, now) = ("forward of layer 1, microbatch 0", "forward of layer 1, microbatch 2");
        assert_eq!(launched_label(&format!("{captured}/gemm"), captured, now), format!("{now}/gemm"));
        let reducing = format!("{captured}, reducing");
        assert_eq!(launched_label(&format!("{captured}/gemm"), &reducing, now), format!("{now}/gemm"));
        assert_eq!(launched_label(&format!("{captured}/gemm"), "step", "step"), format!("{captured}/gemm"));
        assert_eq!(launched_label("gemm", "test", ""), "gemm");
    }
}
