//! A step in words: as its list has it, and as it is captured and launched. Its submissions, as they are heard, must be
//! those of its list.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;

use device::{BufferId, Device, HostOptions, Op, StreamId, Submission, Tensor};
use engine::regions::Mode;
use engine::step::Stage;
use graph_manager::{BufferUse, ListedEntry};

use crate::models::Run;

/// How many operations of each stream are done.
pub type Clock = HashMap<StreamId, usize>;

pub fn join(clock: &mut Clock, other: &Clock) {
    other.iter().for_each(|(stream, done)| {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*done);
    });
}

/// An operation of a list.
struct Listed {
    region: String,
    op: Op,
    /// What is done before it.
    after: Clock,
}

/// A step's list, as far as it was read.
#[derive(Default)]
struct Read {
    /// Streams by first use, with their operations.
    streams: Vec<(StreamId, Vec<Listed>)>,
    /// What is done after the last entry of a stream, and after each entry.
    tails: HashMap<StreamId, Clock>,
    entries: Vec<Clock>,
}

impl Read {
    /// Reads an entry. It names the entries that it waits for.
    fn read(&mut self, entry: &ListedEntry) {
        let mut clock = self.tails.remove(&entry.queue).unwrap_or_default();
        entry.waits.iter().for_each(|on| join(&mut clock, &self.entries[*on]));
        if let Some(op) = &entry.op {
            let listed = Listed { region: entry.region.to_string(), op: op.clone(), after: clock.clone() };
            of_stream(&mut self.streams, entry.queue).push(listed);
            *clock.entry(entry.queue).or_default() += 1;
        }
        self.entries.push(clock.clone());
        self.tails.insert(entry.queue, clock);
    }

    fn ops(&self) -> impl Iterator<Item = &Op> {
        self.streams.iter().flat_map(|(_, listed)| listed).map(|listed| &listed.op)
    }

    /// The operations of each stream in turn, and for each the last one of each other stream that it waits for.
    fn written(&self, device: &Device) -> [String; 2] {
        let (mut operations, mut order) = (String::new(), String::new());
        let accesses = self.ops().map(Op::accesses);
        let tensors = accesses.flat_map(|accesses| accesses.reads.into_iter().chain(accesses.writes));
        let used: HashSet<BufferId> = tensors.map(|tensor| tensor.buffer).collect();
        let used = used.into_iter().map(|buffer| (format!("{buffer:?}"), device.buffer_name(buffer))).collect();
        let mut buffers = Buffers { used, known: HashMap::new() };
        for (stream, (own, listed)) in self.streams.iter().enumerate() {
            for Listed { region, op, after } in listed {
                let text = format!("{region}: {op:?}");
                let _ = writeln!(operations, "stream {stream}: {}", buffers.named(&text));
                let last = |(id, _): &(StreamId, _)| after.get(id).filter(|_| id != own).map(|done| done - 1);
                let last: Vec<Option<usize>> = self.streams.iter().map(last).collect();
                let name = text.split(['(', '{']).next().unwrap_or_default();
                let _ = writeln!(order, "stream {stream}: {name} after {last:?}");
            }
        }
        [operations, order]
    }
}

/// What streams have, by first use: that of this one.
fn of_stream<T>(streams: &mut Vec<(StreamId, Vec<T>)>, stream: StreamId) -> &mut Vec<T> {
    let at = streams.iter().position(|(known, _)| *known == stream).unwrap_or_else(|| {
        streams.push((stream, Vec::new()));
        streams.len() - 1
    });
    &mut streams[at].1
}

/// Names for tensors that do not depend on when their memory was taken.
struct Buffers {
    /// By buffer, as fields of operations show it: the name.
    used: HashMap<String, String>,
    /// By buffer: the name, and the address that offsets are counted from.
    known: HashMap<String, (String, u64)>,
}

impl Buffers {
    /// The text of an operation, with its tensors by buffer and offset.
    fn named(&mut self, text: &str) -> String {
        let mut parts = text.split("Tensor { address: ");
        let mut named = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let (address, rest) = part.split_once(", ").unwrap();
            let (fields, rest) = rest.split_once(", buffer: ").unwrap();
            let (buffer, rest) = rest.split_once(" }").unwrap();
            let (address, buffer) = (address.parse::<u64>().unwrap(), buffer.to_string());
            let next = self.known.len();
            let name = self.used.get(&buffer).map_or("undeclared", String::as_str);
            let (name, base) = self.known.entry(buffer).or_insert_with(|| (format!("{next} {name}"), address));
            let offset = address as i64 - *base as i64;
            let _ = write!(named, "[{name} {offset:+} {fields}]{rest}");
        }
        named
    }
}

/// Operations whose tensors have numbers for buffers, and places in them for addresses, by first use.
fn by_place<'o>(ops: impl Iterator<Item = &'o Op>) -> Vec<Op> {
    let mut known: HashMap<BufferId, (BufferId, u64)> = HashMap::new();
    let mut place = |tensor: Tensor| {
        let next = BufferId::placeholder(known.len() as u32);
        let (buffer, base) = *known.entry(tensor.buffer).or_insert((next, tensor.address));
        Tensor { address: tensor.address.wrapping_sub(base), buffer, ..tensor }
    };
    ops.map(|op| op.clone().map(&mut place)).collect()
}

/// Fails with the first operation that differs between the submissions to each stream and the step's list.
fn assert_same(submitted: &[(StreamId, Vec<Op>)], list: &Read) {
    let counts = |counts: &mut dyn Iterator<Item = usize>| counts.collect::<Vec<_>>();
    let submissions = counts(&mut submitted.iter().map(|(_, ops)| ops.len()));
    assert_eq!(submissions, counts(&mut list.streams.iter().map(|(_, listed)| listed.len())), "operations of streams");
    let (submitted, listed) = (by_place(submitted.iter().flat_map(|(_, ops)| ops)), by_place(list.ops()));
    for (submitted, listed) in submitted.iter().zip(&listed).filter(|(submitted, listed)| submitted != listed) {
        // A caller's own operations are equal only if they are the same.
        assert_eq!(format!("{submitted:?}"), format!("{listed:?}"), "submitted, and in the list");
    }
}

/// The kinds of steps that are recorded.
pub const KINDS: [&str; 4] = ["train", "evaluate", "measure", "fewer microbatches"];

/// Records a run's step of that kind.
pub fn record(stage: &mut Stage, run: &Run, kind: &str) {
    match kind {
        "train" => stage.record(run.microbatches, false),
        "evaluate" => stage.record_evaluation(run.microbatches),
        "measure" => stage.record_measured(run.microbatches),
        "fewer microbatches" => stage.record(run.microbatches.div_ceil(2), false),
        _ => unreachable!("{kind} is no kind"),
    }
    .unwrap();
}

/// The mode of a kind of step, and its number of microbatches.
pub fn mode(run: &Run, kind: &str) -> (Mode, usize) {
    match kind {
        "evaluate" => (Mode::Evaluate, run.microbatches),
        "measure" => (Mode::Measure, run.microbatches),
        "fewer microbatches" => (Mode::Train, run.microbatches.div_ceil(2)),
        _ => (Mode::Train, run.microbatches),
    }
}

/// The operations of each stream, in the order of their submission.
type OfStreams = Vec<(StreamId, Vec<Op>)>;

/// A run's steps as they are recorded, without memory: operations, order, and planned memory. Training, evaluation, a step
/// that measures, and one with half as many microbatches, as in a ramp-up.
pub fn recorded(run: &Run) -> [String; 3] {
    let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
    let mut stage = run.stage(&device);
    let [mut operations, mut order] = [const { String::new() }; 2];
    for kind in KINDS {
        let submitted: Rc<RefCell<OfStreams>> = Rc::default();
        let hears = submitted.clone();
        device.listen(Some(Box::new(move |submission| {
            if let Submission::Operation { stream, op, .. } = submission {
                of_stream(&mut hears.borrow_mut(), stream).push(op.clone());
            }
        })));
        record(&mut stage, run, kind);
        device.listen(None);
        let mut list = Read::default();
        let (mode, microbatches) = mode(run, kind);
        stage.graphs().list(mode.into(), microbatches, |entry| list.read(&entry));
        assert_same(&submitted.borrow(), &list);
        let [in_list, after] = list.written(&device);
        let _ = write!(operations, "{kind}\n{in_list}");
        let _ = write!(order, "{kind}\n{after}");
    }
    let mut memory = String::new();
    let report = stage.graphs().report();
    for area in &report.memory {
        let _ = writeln!(memory, "{}: {} bytes", area.area, area.bytes);
    }
    for step in &report.steps {
        let _ = writeln!(memory, "{}, {} microbatches: {} buffers", step.mode, step.microbatches, step.buffers.len());
        for buffer in &step.buffers {
            // Not when it is used: positions in a list are numbers of its own.
            let BufferUse { name, region, area, offset, bytes, .. } = buffer;
            let _ = writeln!(memory, "{name} of {region}: {bytes} bytes at {offset} of {area}");
        }
    }
    [operations, order, memory]
}

/// The captures of four training steps, and the launches of each: graphs with their slots, nodes and streams, and eager
/// regions.
pub fn launched(run: &Run) -> String {
    let device = run.device();
    let (_, mut stage) = run.train_on(&device);
    let report = stage.graphs().report();
    let mut text = String::new();
    for graph in &report.graphs {
        let _ = writeln!(
            text,
            "{} {} slot {:?} microbatches {:?} {} bytes {:?}",
            graph.mode, graph.name, graph.slot, graph.microbatches, graph.bytes, graph.nodes
        );
    }
    for eager in &report.eager {
        let _ = writeln!(text, "eager: {}: {}", eager.region, eager.reason);
    }
    for step in &report.steps {
        let _ = writeln!(text, "{}: {} eager of {}", step.mode, step.eager_operations, step.operations);
        for launch in &step.order {
            let _ = writeln!(text, "{} {:?} graph {:?}", launch.region, launch.microbatch, launch.graph);
        }
    }
    text
}

/// The bits of a run's losses, norms and final weights.
pub fn trained(run: &Run) -> String {
    let (results, weights) = run.train();
    let mut text = String::new();
    for result in results {
        let _ = writeln!(text, "{:x} {:x} {}", result.loss.to_bits(), result.grad_norm.to_bits(), result.applied);
    }
    for weight in weights {
        let _ = write!(text, "{:x} ", weight);
    }
    text
}
