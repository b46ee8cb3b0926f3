//! A step in words: as its list has it, and as it is captured and launched. Its submissions, as they are heard, must be
//! those of its list.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use device::{BufferId, Device, HostOptions, Op, StreamId, Submission};
use engine::regions::Mode;
use engine::step::Stage;
use graph_manager::{BufferUse, ListedEntry};

use crate::models::Run;

/// A bit for each operation before this one: whether this one waits for it.
type Ancestors = Vec<u64>;

/// The submissions while a step was recorded.
#[derive(Default)]
struct Heard {
    /// Streams by first use.
    streams: Vec<StreamId>,
    /// Each operation with its stream and its fields.
    operations: Vec<(usize, String)>,
    /// The buffers that operations use, as their fields show them.
    buffers: HashMap<String, BufferId>,
    ancestors: Vec<Ancestors>,
    /// The operations that the next operation of a stream waits for, and those that an event stands for.
    tails: HashMap<StreamId, Ancestors>,
    events: HashMap<u64, Ancestors>,
    /// By entry of a list: it and the operations that it waits for.
    entries: Vec<Ancestors>,
}

fn join(all: &mut Ancestors, more: &Ancestors) {
    all.resize(all.len().max(more.len()), 0);
    all.iter_mut().zip(more).for_each(|(a, b)| *a |= b);
}

impl Heard {
    fn hear(&mut self, submission: Submission<'_>) {
        match submission {
            Submission::Operation { stream, op, scope } => {
                let before = self.tails.remove(&stream).unwrap_or_default();
                let done = self.operation(stream, op, scope, before);
                self.tails.insert(stream, done);
            }
            Submission::Record { stream, event } => {
                let tail = self.tails.get(&stream).cloned().unwrap_or_default();
                self.events.insert(event, tail);
            }
            Submission::Wait { stream, event } => {
                let before = self.events.get(&event).cloned().unwrap_or_default();
                join(self.tails.entry(stream).or_default(), &before);
            }
        }
    }

    /// Adds an operation; returns it and the operations that it waits for.
    fn operation(&mut self, stream: StreamId, op: &Op, scope: &str, before: Ancestors) -> Ancestors {
        let known = self.streams.iter().position(|known| *known == stream);
        let number = known.unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        let at = self.operations.len();
        self.operations.push((number, format!("{scope}: {op:?}")));
        let accesses = op.accesses();
        let tensors = accesses.reads.iter().chain(&accesses.writes);
        self.buffers.extend(tensors.map(|tensor| (format!("{:?}", tensor.buffer), tensor.buffer)));
        let mut done = before.clone();
        self.ancestors.push(before);
        done.resize(done.len().max(at / 64 + 1), 0);
        done[at / 64] |= 1 << (at % 64);
        done
    }

    /// Reads an entry of a list. The entry names the entries that it waits for.
    fn read(&mut self, entry: &ListedEntry) {
        let mut before = self.tails.remove(&entry.queue).unwrap_or_default();
        entry.waits.iter().for_each(|on| join(&mut before, &self.entries[*on]));
        let done = match &entry.op {
            Some(op) => self.operation(entry.queue, op, &entry.region, before),
            None => before,
        };
        self.entries.push(done.clone());
        self.tails.insert(entry.queue, done);
    }

    /// The operations of each stream in turn, and for each the operations that it waits for, through any events.
    fn written(&self, device: &Device) -> [String; 2] {
        let mut place = vec![(0, 0); self.operations.len()];
        let (mut operations, mut order) = (String::new(), String::new());
        let mut buffers = Buffers { device, used: &self.buffers, known: HashMap::new() };
        for (stream, _) in self.streams.iter().enumerate() {
            let own = self.operations.iter().enumerate().filter(|(_, (of, _))| *of == stream);
            for (number, (at, (_, text))) in own.enumerate() {
                place[at] = (stream, number);
                let _ = writeln!(operations, "stream {stream}: {}", buffers.named(text));
            }
        }
        for stream in 0..self.streams.len() {
            for (at, (_, text)) in self.operations.iter().enumerate().filter(|(_, (of, _))| *of == stream) {
                // The last operation of each other stream that it waits for: it waits for those before it too.
                let mut last: Vec<Option<usize>> = vec![None; self.streams.len()];
                for before in (0..at).filter(|before| {
                    self.ancestors[at].get(before / 64).is_some_and(|bits| bits >> (before % 64) & 1 == 1)
                }) {
                    let (of, number) = place[before];
                    last[of] = last[of].max(Some(number));
                }
                last[stream] = None;
                let name = text.split(['(', '{']).next().unwrap_or_default();
                let _ = writeln!(order, "stream {stream}: {name} after {last:?}");
            }
        }
        [operations, order]
    }
}

/// Names for tensors that do not depend on when their memory was taken.
struct Buffers<'d> {
    device: &'d Device,
    used: &'d HashMap<String, BufferId>,
    /// By buffer: the name, and the address that offsets are counted from.
    known: HashMap<String, (String, u64)>,
}

impl Buffers<'_> {
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
            let name =
                self.used.get(&buffer).map_or("undeclared".to_string(), |buffer| self.device.buffer_name(*buffer));
            let (name, base) = self.known.entry(buffer).or_insert_with(|| (format!("{next} {name}"), address));
            let offset = address as i64 - *base as i64;
            let _ = write!(named, "[{name} {offset:+} {fields}]{rest}");
        }
        named
    }
}

/// Fails with the first line that differs between the submissions and the step's list. Scopes may differ: if a region
/// submits operations after an inner region has ended, the device still counts them to the inner one.
fn same(what: &str, submitted: &str, listed: &str) {
    let op = |line: &str| match line.splitn(3, ": ").collect::<Vec<_>>()[..] {
        [stream, _, op] => format!("{stream}: {op}"),
        _ => line.to_string(),
    };
    let differs = submitted.lines().zip(listed.lines()).find(|(submitted, listed)| op(submitted) != op(listed));
    assert!(differs.is_none(), "{what}: submitted, and in the list: {differs:#?}");
    assert_eq!(submitted.lines().count(), listed.lines().count(), "{what}");
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

/// A run's steps as they are recorded, without memory: operations, order, and planned memory. Training, evaluation, a step
/// that measures, and one with half as many microbatches, as in a ramp-up.
pub fn recorded(run: &Run) -> [String; 3] {
    let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
    let mut stage = run.stage(&device);
    let [mut operations, mut order] = [const { String::new() }; 2];
    for kind in KINDS {
        let heard: Rc<RefCell<Heard>> = Rc::default();
        let hears = heard.clone();
        device.listen(Some(Box::new(move |submission| hears.borrow_mut().hear(submission))));
        record(&mut stage, run, kind);
        device.listen(None);
        let [these, _] = heard.borrow().written(&device);
        let mut listed = Heard::default();
        let (mode, microbatches) = mode(run, kind);
        stage.graphs().list(mode.into(), microbatches, |entry| listed.read(&entry));
        let [in_list, after] = listed.written(&device);
        same("operations", &these, &in_list);
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
        let _ = write!(text, "{:x} ", weight.to_bits());
    }
    text
}
