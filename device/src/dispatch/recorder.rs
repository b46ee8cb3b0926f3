//! The clock of a timeline: the host's, or CUPTI.

use std::rc::Rc;

use crate::Op;
use crate::cuda::{Cupti, CuptiNote};
use crate::timeline::{HostClock, OpenSpan, stream_row, work_details};

/// Takes the times of a timeline.
#[derive(Clone, Default)]
pub(crate) enum Recorder {
    /// No timeline was asked for.
    #[default]
    Off,
    Host(HostClock),
    Cuda(Rc<Cupti>),
}

/// Work that is being submitted or done. It ends when this is dropped.
#[allow(dead_code, reason = "dropping them is their use")]
pub(crate) enum Note {
    Nothing,
    Host(OpenSpan),
    Cuda(CuptiNote),
}

impl Recorder {
    /// Notes an operation; `None` for a copy. While its stream captures, only the operation's name and details are
    /// noted.
    pub(crate) fn operation(&self, stream: &str, label: &str, op: Option<&Op>, capturing: bool) -> Note {
        let details = || op.map_or_else(Vec::new, work_details);
        match self {
            Recorder::Host(clock) if !capturing => {
                clock.open(&stream_row(stream), "operation", label, details).map_or(Note::Nothing, Note::Host)
            }
            Recorder::Cuda(cupti) => cupti.submit(label, None, details, capturing).map_or(Note::Nothing, Note::Cuda),
            _ => Note::Nothing,
        }
    }

    /// Notes the launch of a graph for a region.
    pub(crate) fn launch(&self, graph: &str, region: &str) -> Note {
        let region = if region.is_empty() { graph } else { region };
        match self {
            Recorder::Host(clock) => {
                let details = || vec![("graph", graph.to_string())];
                clock.open("host", "launch", region, details).map_or(Note::Nothing, Note::Host)
            }
            Recorder::Cuda(cupti) => {
                cupti.submit(region, Some(graph), Vec::new, false).map_or(Note::Nothing, Note::Cuda)
            }
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
