//! From CUPTI's records to spans with names.

use std::collections::HashMap;
use std::ops::Range;

use super::records::{Record, Work};
use crate::timeline::{Span, launched_label, stream_row};

/// Something submitted: an operation, or a graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Submitted {
    /// The operation's label, or the region a graph was launched for.
    pub(super) label: String,
    /// The graph's name.
    pub(super) graph: Option<String>,
    /// Details of the operation.
    pub(super) details: Vec<(&'static str, String)>,
    /// The time of the host's submission, by CUPTI's clock. `None` if no timeline was made then.
    pub(super) host: Option<Range<u64>>,
}

impl Submitted {
    /// The span of the operation's submission, in a timeline that began at `began`. `None` if it was submitted before.
    /// `id` is CUPTI's for it.
    fn span(&self, id: u64, began: u64) -> Option<Span> {
        let host = self.host.clone().filter(|host| host.start >= began)?;
        let graph = self.graph.iter().map(|graph| ("graph", graph.clone()));
        Some(Span {
            row: "host".into(),
            name: self.label.clone(),
            category: if self.graph.is_some() { "launch" } else { "submit" },
            start_ns: host.start - began,
            duration_ns: host.end.saturating_sub(host.start),
            details: self.details.iter().cloned().chain(graph).collect(),
            submission: id << 32,
        })
    }
}

/// Names that are known besides the records.
pub(super) struct SpanNames<'a> {
    /// The entry at index n has id n + 1.
    pub(super) submitted: &'a [Submitted],
    /// Ids of submitted work by graph node.
    pub(super) nodes: &'a HashMap<u64, u64>,
    /// Names of streams by CUPTI's number.
    pub(super) streams: &'a HashMap<u32, String>,
}

impl SpanNames<'_> {
    fn get(&self, id: Option<&u64>) -> Option<&Submitted> {
        self.submitted.get((*id? as usize).checked_sub(1)?)
    }
}

/// The spans of records and submissions that started after `began`. `call_name` names a call of the driver (`true`) or the runtime by
/// its id.
pub(super) fn spans(
    records: &[Record],
    began: u64,
    names: &SpanNames<'_>,
    call_name: impl Fn(bool, u32) -> String,
) -> Vec<Span> {
    let correlations: HashMap<u32, u64> = records.iter().filter_map(correlation).collect();
    // The thread with correlated calls is the one that submits.
    let submits = records.iter().find_map(|record| match record {
        Record::Call { thread, correlation, .. } if correlations.contains_key(correlation) => Some(*thread),
        _ => None,
    });
    let span = |record: &Record| match record {
        Record::Work { what, start, end, stream, correlation, node } if *start >= began => {
            let launch = names.get(correlations.get(correlation));
            let name = names.streams.get(stream).map_or_else(|| stream.to_string(), Clone::clone);
            let ids = (correlations.get(correlation), names.nodes.get(node));
            let submission = ids.0.map_or(0, |id| id << 32) | ids.1.copied().unwrap_or_default();
            let span = work(what, *start - began, *end, began, &stream_row(&name), launch, names.get(ids.1));
            Some(Span { submission, ..span })
        }
        Record::Call { driver, id, start, end, thread, correlation } if *start >= began => {
            let row = if submits == Some(*thread) { "host".into() } else { format!("host, thread {thread}") };
            let details = names.get(correlations.get(correlation)).map(|what| ("for", what.label.clone()));
            Some(Span {
                row,
                name: call_name(*driver, *id),
                category: "call",
                start_ns: start - began,
                duration_ns: end.saturating_sub(*start),
                details: details.into_iter().collect(),
                submission: 0,
            })
        }
        _ => None,
    };
    let submissions = (1..).zip(names.submitted).filter_map(|(id, submitted)| submitted.span(id, began));
    submissions.chain(records.iter().filter_map(span)).collect()
}

fn correlation(record: &Record) -> Option<(u32, u64)> {
    match record {
        Record::Correlation { id, correlation } => Some((*correlation, *id)),
        _ => None,
    }
}

/// The span of a GPU's work. It is named after its node's operation, else after the submission, else after itself.
fn work(
    what: &Work,
    start_ns: u64,
    end: u64,
    began: u64,
    row: &str,
    launch: Option<&Submitted>,
    node: Option<&Submitted>,
) -> Span {
    let operation = node.or(launch.filter(|launch| launch.graph.is_none()));
    let mut details = operation.map_or_else(Vec::new, |operation| operation.details.clone());
    let (category, own) = match what {
        Work::Kernel { symbol, grid, block } => {
            details.push(("kernel", symbol.clone()));
            details.push(("grid", format!("{grid:?}")));
            details.push(("block", format!("{block:?}")));
            ("kernel", symbol.as_str())
        }
        Work::Copy { bytes, way } => {
            details.push(("copied", bytes.to_string()));
            details.extend(way.map(|way| ("way", way.to_string())));
            ("copy", "copy")
        }
        Work::Set { bytes } => {
            details.push(("set", bytes.to_string()));
            ("set", "set")
        }
    };
    let graph = launch.and_then(|launch| launch.graph.as_deref());
    if let Some(graph) = graph {
        details.push(("graph", graph.into()));
    }
    let name = match (node, launch) {
        (Some(node), Some(launch)) => launched_label(&node.label, graph.unwrap_or_default(), &launch.label),
        (Some(node), None) => node.label.clone(),
        (None, Some(launch)) if graph.is_none() => launch.label.clone(),
        (None, _) => own.into(),
    };
    let duration_ns = end.saturating_sub(began + start_ns);
    Span { row: row.into(), name, category, start_ns, duration_ns, details, submission: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(start: u64, correlation: u32, node: u64) -> Record {
        let what = Work::Kernel { symbol: "k".into(), grid: [1, 1, 1], block: [32, 1, 1] };
        Record::Work { what, start, end: start + 5, stream: 7, correlation, node }
    }

    #[test]
    fn kernels_are_named_after_their_graph_node_for_the_region_launched_or_after_the_eager_operation() {
        let submitted = |label: &str, graph: Option<&str>, host: Option<Range<u64>>| Submitted {
            label: label.into(),
            graph: graph.map(str::to_string),
            details: vec![("shape", "8".into())],
            host,
        };
        let graph = "forward of layer 1, microbatch 0";
        let submitted = [
            submitted("forward of layer 1, microbatch 0/gemm", None, Some(40..50)),
            submitted("forward of layer 1, microbatch 3", Some(graph), Some(112..119)),
            submitted("begin/fill", None, Some(100..104)),
        ];
        let (nodes, streams) = (HashMap::from([(40, 1)]), HashMap::from([(7, "compute".to_string())]));
        let names = SpanNames { submitted: &submitted, nodes: &nodes, streams: &streams };
        let records = [
            Record::Correlation { id: 3, correlation: 10 },
            Record::Call { driver: true, id: 1, start: 101, end: 103, thread: 5, correlation: 10 },
            kernel(110, 10, 0),
            Record::Correlation { id: 2, correlation: 11 },
            kernel(120, 11, 40),
            kernel(130, 11, 99),
            kernel(90, 11, 40),
        ];
        let spans = spans(&records, 100, &names, |_, id| format!("call {id}"));
        let short: Vec<(&str, &str, u64, u64)> =
            spans.iter().map(|s| (&*s.row, &*s.name, s.start_ns, s.duration_ns)).collect();
        // What was submitted before the timeline has no span.
        let expected = [
            ("host", "forward of layer 1, microbatch 3", 12, 7),
            ("host", "begin/fill", 0, 4),
            ("host", "call 1", 1, 2),
            ("stream compute", "begin/fill", 10, 5),
            ("stream compute", "forward of layer 1, microbatch 3/gemm", 20, 5),
            ("stream compute", "k", 30, 5),
        ];
        assert_eq!(short, expected);
        assert_eq!(spans[2].details, [("for", "begin/fill".to_string())]);
        assert!(spans[4].details.contains(&("graph", graph.to_string())));
        let (launch, submit, kernel) = (&spans[0], &spans[1], &spans[3]);
        assert_eq!((launch.category, launch.detail("graph")), ("launch", Some(graph)));
        assert_eq!((submit.category, submit.detail("shape")), ("submit", Some("8")));
        assert_eq!(submit.submission, kernel.submission, "the host's time and the kernel are of one operation");
    }
}
