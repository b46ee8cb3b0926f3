//! Reads the timelines of `--trace`: the operations of each rank with their times.

use common::choice;
use device::WORK_CATEGORIES;
use serde::Deserialize;
use serde_json::Value;

/// Operations between ranks.
const TRANSFERS: [&str; 7] = ["all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "send", "receive"];

choice! {
    /// The kind of work that an operation is part of.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Kind {
        /// A forward.
        Forward = "forward",
        /// A backward.
        Backward = "backward",
        /// Weight gradients that a schedule defers.
        Weights = "weights",
        /// An update.
        Update = "update",
        /// A transfer between ranks.
        Transfer = "transfer",
        /// Anything else.
        Other = "other",
    }
}

impl Kind {
    /// The kind of a region, by the region's name.
    pub(crate) fn of_region(region: &str) -> Kind {
        let starts = |words: &[&str]| words.iter().any(|word| region.starts_with(word));
        match region {
            _ if starts(&["backward", "input gradients", "output gradients"]) => Kind::Backward,
            _ if starts(&["forward", "inputs", "outputs"]) => Kind::Forward,
            _ if starts(&["weights", "weight gradients"]) => Kind::Weights,
            _ if starts(&["optimizer"]) => Kind::Update,
            _ => Kind::Other,
        }
    }
}

/// An operation that ran on a rank's device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// The region, a slash, and the operation.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) microbatch: Option<usize>,
    /// Milliseconds since 1970.
    pub(crate) start: f64,
    /// Milliseconds since 1970.
    pub(crate) end: f64,
}

impl Operation {
    /// The operation's name without the region.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }
}

/// The timeline of a rank.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) rank: usize,
    /// By start.
    pub(crate) operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "baseTimeNanoseconds", default)]
    base: u64,
    #[serde(rename = "traceEvents")]
    events: Vec<TraceEvent>,
}

#[derive(Deserialize)]
struct TraceEvent {
    name: String,
    #[serde(default)]
    cat: String,
    ph: String,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    /// Microseconds.
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    pid: usize,
    #[serde(default)]
    args: Value,
}

impl Trace {
    /// The timeline in a file of Chrome's trace events.
    ///
    /// # Errors
    /// The file is not JSON of that form.
    pub(crate) fn read(bytes: &[u8]) -> serde_json::Result<Trace> {
        let File { base, events } = serde_json::from_slice(bytes)?;
        let rank = events.first().map_or(0, |event| event.pid);
        let base = base as f64 / 1e6;
        let is_work = |event: &TraceEvent| {
            event.ph == "X" && WORK_CATEGORIES.contains(&&*event.cat) && event.name.rsplit('/').next() != Some("mark")
        };
        let operation = |event: TraceEvent| {
            let start = base + event.ts / 1e3;
            let is_transfer = is_transfer(&event.name, |detail| event.args[detail].as_str());
            let kind = if is_transfer { Kind::Transfer } else { Kind::of_region(&event.name) };
            let microbatch = number_after(&event.name, "microbatch ");
            Operation { kind, microbatch, start, end: start + event.dur / 1e3, name: event.name }
        };
        let mut operations: Vec<Operation> = events.into_iter().filter(is_work).map(operation).collect();
        operations.sort_by(|a, b| a.start.total_cmp(&b.start));
        Ok(Trace { rank, operations })
    }

    /// The operations of the last training step. Such a step begins with the region `begin` and has the optimizer. All
    /// operations if there is no such step.
    pub(crate) fn last_step(&self) -> &[Operation] {
        let begins = |at: &usize| {
            let is_begin = |at: usize| self.operations[at].name.starts_with("begin/");
            is_begin(*at) && (*at == 0 || !is_begin(at - 1))
        };
        let mut bounds: Vec<usize> = (0..self.operations.len()).filter(begins).collect();
        bounds.push(self.operations.len());
        let steps = bounds.windows(2).map(|bounds| &self.operations[bounds[0]..bounds[1]]);
        let trains = |step: &&[Operation]| step.iter().any(|operation| operation.kind == Kind::Update);
        steps.rev().find(trains).unwrap_or(&self.operations)
    }
}

/// Whether a span is a transfer between ranks, or to or from the host's memory, by the span's name and details.
pub(crate) fn is_transfer<'d>(name: &str, detail: impl Fn(&str) -> Option<&'d str>) -> bool {
    let operation = name.rsplit('/').next().unwrap_or_default();
    let is_nccl = || detail("kernel").is_some_and(|kernel| kernel.to_lowercase().contains("nccl"));
    TRANSFERS.contains(&operation) || is_nccl() || detail("way").is_some()
}

/// The number that follows `word`.
pub(crate) fn number_after(text: &str, word: &str) -> Option<usize> {
    let rest = &text[text.find(word)? + word.len()..];
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(events: &[(&str, &str, f64)]) -> Trace {
        let event = |(name, cat, ts): &(&str, &str, f64)| serde_json::json!({ "name": name, "cat": cat, "ph": "X", "ts": ts, "dur": 500.0, "pid": 3, "args": {} });
        let meta = serde_json::json!({ "name": "process_name", "ph": "M", "pid": 3, "args": { "name": "rank 3" } });
        let events: Vec<Value> = std::iter::once(meta).chain(events.iter().map(event)).collect();
        let file = serde_json::json!({ "baseTimeNanoseconds": 2_000_000, "traceEvents": events });
        Trace::read(file.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_last_step_is_the_last_with_an_update_and_only_work_of_the_device_counts() {
        let step = |from: f64| {
            [
                ("begin/mark", "operation", from),
                ("begin/fill", "operation", from + 1.0),
                ("begin/fill", "operation", from + 2.0),
                ("forward of layer 1, microbatch 2", "launch", from + 3.0),
                ("forward of layer 1, microbatch 2/gemm", "kernel", from + 3.0),
                ("outputs of layer 1, microbatch 2/send", "operation", from + 4.0),
                ("optimizer/adamw", "operation", from + 5.0),
            ]
        };
        let evaluation =
            [("begin/fill", "operation", 300.0), ("forward of layer 1, microbatch 0/gemm", "kernel", 301.0)];
        let trace = trace(&[&step(200.0)[..], &step(100.0), &evaluation].concat());
        assert_eq!((trace.rank, trace.operations.len()), (3, 5 + 5 + 2));
        let last = trace.last_step();
        let kinds: Vec<Kind> = last.iter().map(|operation| operation.kind).collect();
        assert_eq!(kinds, [Kind::Other, Kind::Other, Kind::Forward, Kind::Transfer, Kind::Update]);
        assert_eq!((last[2].microbatch, last[2].short_name()), (Some(2), "gemm"));
        assert!((last[2].start - 2.203).abs() < 1e-9 && (last[2].end - 2.703).abs() < 1e-9, "{:?}", last[2]);
    }

    #[test]
    fn kernels_of_nccl_are_transfers() {
        let event = serde_json::json!({ "name": "reduce/x", "cat": "kernel", "ph": "X", "args": { "kernel": "ncclDevKernel" } });
        let file = serde_json::json!({ "traceEvents": [event] }).to_string();
        assert_eq!(Trace::read(file.as_bytes()).unwrap().operations[0].kind, Kind::Transfer);
        assert!(Trace::read(b"[]").is_err());
    }
}
