//! Where the time of a few steps goes: spans of time on rows, a row a stream, for a viewer such as Perfetto.
//!
//! On the host an operation's span is when it ran, since streams run inline. On CUDA times come from CUPTI
//! ([`crate::cuda`]'s `cupti`), for work inside graphs too.

mod chrome;
mod host;

use std::rc::Rc;
use std::time::SystemTime;

pub(crate) use host::{HostClock, OpenSpan};

use crate::cuda::{Cupti, CuptiNote};
use crate::lane::Backend;
use crate::{Device, Error, Result};

/// A span of time on a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The stream `compute` is row `stream compute`; what the host does is on row `host`.
    pub row: String,
    /// What was done: `region/operation` where that is known.
    pub name: String,
    /// `operation`, `launch`, `kernel`, `copy`, `set` or `call`.
    pub category: &'static str,
    /// Nanoseconds from the timeline's beginning.
    pub start_ns: u64,
    /// Nanoseconds it took.
    pub duration_ns: u64,
    /// What else is known, by name: the kernel's symbol, bytes, the region it was launched for.
    pub details: Vec<(&'static str, String)>,
}

/// What happened between [`Device::begin_timeline`] and [`Device::end_timeline`], by time of start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// When it began, in nanoseconds since 1970 by this machine's clock: what tells ranks' timelines together.
    pub began_ns: u64,
    /// The spans.
    pub spans: Vec<Span>,
}

/// What notes times: the host's clock, or CUPTI.
#[derive(Clone, Default)]
pub(crate) enum Recorder {
    /// Nobody asked for a timeline.
    #[default]
    Off,
    Host(HostClock),
    Cuda(Rc<Cupti>),
}

/// Work being submitted or done: it ends when this is dropped.
#[allow(dead_code, reason = "dropping them is their use")]
pub(crate) enum Note {
    Nothing,
    Host(OpenSpan),
    Cuda(CuptiNote),
}

impl Recorder {
    /// Notes an operation; while its stream captures only its name.
    pub(crate) fn operation(&self, stream: &str, label: &str, capturing: bool) -> Note {
        match self {
            Recorder::Host(clock) if !capturing => clock.open(&stream_row(stream), "operation", label),
            Recorder::Cuda(cupti) => cupti.submit(label, None, capturing).map_or(Note::Nothing, Note::Cuda),
            _ => Note::Nothing,
        }
    }

    /// Notes the launch of a graph for a region.
    pub(crate) fn launch(&self, graph: &str, region: &str) -> Note {
        let region = if region.is_empty() { graph } else { region };
        match self {
            Recorder::Host(clock) => clock.open("host", "launch", region),
            Recorder::Cuda(cupti) => cupti.submit(region, Some(graph), false).map_or(Note::Nothing, Note::Cuda),
            Recorder::Off => Note::Nothing,
        }
    }

    /// Whether a timeline is being made.
    pub(crate) fn is_running(&self) -> bool {
        match self {
            Recorder::Off => false,
            Recorder::Host(clock) => clock.is_running(),
            Recorder::Cuda(cupti) => cupti.is_running(),
        }
    }
}

/// The row of a stream.
pub(crate) fn stream_row(name: &str) -> String {
    format!("stream {name}")
}

/// The label of a captured operation in a launch of its graph for `region`. A graph of one region serves all
/// microbatches of its slot, and its operations are labelled with the one it was captured with.
pub(crate) fn launched_label(label: &str, graph: &str, region: &str) -> String {
    match label.rsplit_once('/') {
        Some((captured, op)) if !region.is_empty() && graph.starts_with(captured) => format!("{region}/{op}"),
        _ => label.into(),
    }
}

impl Device {
    /// Makes timelines possible. Call it before the first capture: the names of operations in graphs are kept from
    /// now on.
    ///
    /// # Errors
    /// On CUDA: CUPTI is missing, or another profiler is attached.
    pub fn prepare_timeline(&self) -> Result<()> {
        let mut core = self.core();
        core.recorder = match &core.backend {
            Backend::Host(_) => Recorder::Host(HostClock::default()),
            Backend::Cuda(_) => Recorder::Cuda(Rc::new(Cupti::open()?)),
        };
        Ok(())
    }

    /// Begins a timeline once all work submitted before is done.
    ///
    /// # Errors
    /// [`Device::prepare_timeline`] was not called; as [`Device::synchronize`]; CUPTI's.
    pub fn begin_timeline(&self) -> Result<()> {
        self.synchronize()?;
        let mut core = self.core();
        match &core.recorder {
            Recorder::Off => {
                return Err(Error::operation("timeline", "prepare_timeline() comes before begin_timeline()"));
            }
            Recorder::Host(clock) => clock.begin(),
            Recorder::Cuda(cupti) => cupti.begin()?,
        }
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        core.timeline_began_ns = since_1970.as_nanos() as u64;
        Ok(())
    }

    /// Whether a timeline is being made.
    pub fn is_timed(&self) -> bool {
        self.core().recorder.is_running()
    }

    /// Ends the timeline once all work is done, and returns it; an empty one if none was begun.
    ///
    /// # Errors
    /// As [`Device::synchronize`]; CUPTI's.
    pub fn end_timeline(&self) -> Result<Timeline> {
        self.synchronize()?;
        let core = self.core();
        let mut spans = match &core.recorder {
            Recorder::Off => Vec::new(),
            Recorder::Host(clock) => clock.end(),
            Recorder::Cuda(cupti) => {
                let named = core.streams.iter().filter_map(|stream| Some((stream.lane.raw_stream()?, &*stream.name)));
                cupti.end(named)?
            }
        };
        spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.duration_ns)));
        Ok(Timeline { began_ns: core.timeline_began_ns, spans })
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
