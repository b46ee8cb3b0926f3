//! The graph checker. It proves for all submitted work that no two operations race on a buffer, and that every read
//! finds the values of the buffer that it names.
//!
//! Happens-before follows from stream order, events, launches and host waits, kept as one vector clock per stream and
//! per recorded event. Memory is a map of byte ranges, each with the buffer that owns its values, the last write and
//! the reads since. A graph is analysed once, at the end of its capture, in the order that its nodes' dependencies
//! give. From then on a launch counts as one operation, with the graph's reads from outside and the writes that the
//! graph leaves.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use super::lent;
use super::lent::Lent;
use crate::{Accesses, BufferId, BufferNames, CheckError, Node, Result, StreamId, Tensor};

/// A vector clock: how far each stream has come, by its number.
type Clock = Vec<u64>;

fn join(into: &mut Clock, from: &[u64]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (mine, theirs) in into.iter_mut().zip(from) {
        *mine = (*mine).max(*theirs);
    }
}

/// One operation that touched a range.
#[derive(Clone, Debug)]
struct Access {
    stream: usize,
    time: u64,
    /// The number among all operations of the device.
    number: u64,
    label: Rc<str>,
}

impl Access {
    fn before(&self, clock: &Clock) -> bool {
        clock.get(self.stream).is_some_and(|&time| time >= self.time)
    }
}

/// The state of a range of bytes.
#[derive(Clone, Debug, Default)]
struct ByteRange {
    end: u64,
    /// The buffer that owns the values here, and the operation that wrote them. The values of adopted memory are nobody's:
    /// any buffer there has them.
    written: Option<(BufferId, Access)>,
    /// Reads since.
    reads: Vec<Access>,
    freed: bool,
}

/// Byte ranges and their states.
#[derive(Default)]
struct MemoryMap {
    cells: BTreeMap<u64, ByteRange>,
}

impl MemoryMap {
    /// Makes `at` a border between cells.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..at).next_back()
            && cell.end > at
        {
            let right = cell.clone();
            cell.end = at;
            self.cells.insert(at, right);
        }
    }

    /// Replaces everything known of the range by `cell`.
    fn replace(&mut self, range: Range<u64>, cell: ByteRange) {
        self.split(range.start);
        self.split(range.end);
        let inside: Vec<u64> = self.cells.range(range.clone()).map(|(start, _)| *start).collect();
        for start in inside {
            self.cells.remove(&start);
        }
        self.cells.insert(range.start, ByteRange { end: range.end, ..cell });
    }

    fn remove(&mut self, range: Range<u64>) {
        self.replace(range.clone(), ByteRange::default());
        self.cells.remove(&range.start);
    }

    /// All that is known of a range, in parts. Gaps are filled with blank parts first.
    fn cells(&mut self, range: Range<u64>) -> impl Iterator<Item = (u64, &mut ByteRange)> {
        self.split(range.start);
        self.split(range.end);
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (start, cell) in self.cells.range(range.clone()) {
            if *start > at {
                gaps.push((at, *start));
            }
            at = cell.end;
        }
        if at < range.end {
            gaps.push((at, range.end));
        }
        for (start, end) in gaps {
            self.cells.insert(start, ByteRange { end, ..ByteRange::default() });
        }
        self.cells.range_mut(range).map(|(start, cell)| (*start, cell))
    }
}

fn race(buffer: BufferId, first: &Access, second: &Access, names: &BufferNames) -> CheckError {
    CheckError::Race { buffer: names.of(buffer), first: first.label.to_string(), second: second.label.to_string() }
}

/// Checks one read of a cell and notes it.
fn read_cell(
    cell: &mut ByteRange,
    meant: lent::Values,
    by: &Access,
    clock: &Clock,
    names: &BufferNames,
    checked: &mut Checked,
) -> Result<()> {
    if cell.freed {
        return Err(CheckError::Freed { user: by.label.to_string(), buffer: names.of(meant.of) }.into());
    }
    match &cell.written {
        None => {
            return Err(CheckError::Uninitialized { reader: by.label.to_string(), buffer: names.of(meant.of) }.into());
        }
        Some((owner, writer)) if *owner == meant.of && writer.number > meant.until => {
            let [reader, writer] = [&by.label, &writer.label].map(|label| label.to_string());
            return Err(CheckError::Kept { reader, buffer: names.of(meant.of), writer }.into());
        }
        Some((owner, writer)) if *owner != meant.of && *owner != BufferId::NOTHING => {
            return Err(CheckError::Overwritten {
                reader: by.label.to_string(),
                buffer: names.of(meant.of),
                writer: writer.label.to_string(),
                owner: names.of(*owner),
            }
            .into());
        }
        Some((_, writer)) if !writer.before(clock) => return Err(race(meant.of, writer, by, names).into()),
        Some(_) => {}
    }
    checked.reads += 1;
    checked.pairs += 1;
    cell.reads.retain(|read| read.stream != by.stream);
    cell.reads.push(by.clone());
    Ok(())
}

/// Checks one write of a cell and notes it.
fn write_cell(
    cell: &mut ByteRange,
    buffer: BufferId,
    by: &Access,
    clock: &Clock,
    names: &BufferNames,
    checked: &mut Checked,
) -> Result<()> {
    if cell.freed {
        return Err(CheckError::Freed { user: by.label.to_string(), buffer: names.of(buffer) }.into());
    }
    let earlier = cell.reads.iter().chain(cell.written.iter().map(|(_, writer)| writer));
    if let Some(first) = earlier.into_iter().find(|access| !access.before(clock)) {
        return Err(race(buffer, first, by, names).into());
    }
    checked.pairs += (cell.reads.len() + usize::from(cell.written.is_some())) as u64;
    cell.written = Some((buffer, by.clone()));
    cell.reads.clear();
    Ok(())
}

/// Counts of the things that a checker has checked and found right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Launches of graphs.
    pub launches: u64,
    /// Operations and copies outside of graphs.
    pub eager: u64,
    /// Reads of a range of bytes. Each found the values of the buffer that it names.
    pub reads: u64,
    /// Pairs of operations or launches that touch the same bytes, if at least one of them writes. One of the two waits
    /// for the other.
    pub pairs: u64,
}

/// The checker of a device's eager operations and launches.
pub(crate) struct Checker {
    pub(crate) checked: Checked,
    memory: MemoryMap,
    streams: Vec<Clock>,
    /// Operations, launches and copies so far.
    pub(crate) operations: u64,
    pub(crate) lent: Lent,
    /// The work that the host has waited for. The host shares number 0 with the default stream.
    host: Clock,
    events: HashMap<u64, Clock>,
}

impl Checker {
    pub(crate) fn new() -> Checker {
        Checker {
            checked: Checked::default(),
            memory: MemoryMap::default(),
            streams: Vec::new(),
            operations: 0,
            lent: Lent::default(),
            host: vec![0],
            events: HashMap::new(),
        }
    }

    /// Advances a stream's clock by one operation. It comes after everything that the host has waited for.
    fn advance(&mut self, stream: StreamId) -> (u64, Clock) {
        let index = stream.index();
        if self.streams.len() <= index {
            self.streams.resize(index + 1, Clock::new());
        }
        let clock = &mut self.streams[index];
        join(clock, &self.host);
        if clock.len() <= index {
            clock.resize(index + 1, 0);
        }
        clock[index] += 1;
        (clock[index], clock.clone())
    }

    pub(crate) fn operation(
        &mut self,
        stream: StreamId,
        label: &Rc<str>,
        accesses: &Accesses,
        names: &BufferNames,
    ) -> Result<()> {
        self.checked.eager += 1;
        let (time, clock) = self.advance(stream);
        self.operations += 1;
        let by = Access { stream: stream.index(), time, number: self.operations, label: label.clone() };
        for tensor in &accesses.reads {
            let meant = self.lent.meant(tensor.buffer);
            for (_, cell) in self.memory.cells(tensor.range()) {
                read_cell(cell, meant, &by, &clock, names, &mut self.checked)?;
            }
        }
        for tensor in &accesses.writes {
            let buffer = self.lent.written(tensor.buffer, self.operations);
            for (_, cell) in self.memory.cells(tensor.range()) {
                write_cell(cell, buffer, &by, &clock, names, &mut self.checked)?;
            }
        }
        Ok(())
    }

    /// A launch of an analysed graph on a stream.
    pub(crate) fn launch(
        &mut self,
        stream: StreamId,
        graph: &str,
        effects: &Effects,
        names: &BufferNames,
    ) -> Result<()> {
        self.checked.launches += 1;
        let (time, clock) = self.advance(stream);
        self.operations += 1;
        let (stream, number) = (stream.index(), self.operations);
        let access = |label: &Rc<str>| Access { stream, time, number, label: format!("graph {graph}: {label}").into() };
        for effect in &effects.reads {
            let by = access(&effect.label);
            let meant = self.lent.meant(effect.buffer);
            for (_, cell) in self.memory.cells(effect.range.clone()) {
                read_cell(cell, meant, &by, &clock, names, &mut self.checked)?;
            }
        }
        for effect in &effects.writes {
            let by = access(&effect.label);
            for (_, cell) in self.memory.cells(effect.range.clone()) {
                write_cell(cell, effect.buffer, &by, &clock, names, &mut self.checked)?;
            }
        }
        Ok(())
    }

    pub(crate) fn record(&mut self, stream: StreamId, event: u64) {
        let (_, clock) = self.advance(stream);
        self.events.insert(event, clock);
    }

    pub(crate) fn wait(&mut self, stream: StreamId, event: u64) {
        self.advance(stream);
        if let Some(clock) = self.events.get(&event) {
            join(&mut self.streams[stream.index()], clock);
        }
    }

    pub(crate) fn host_wait(&mut self, event: u64) {
        if let Some(clock) = self.events.get(&event) {
            join(&mut self.host, clock);
        }
    }

    pub(crate) fn synchronize(&mut self, stream: StreamId) {
        let (_, clock) = self.advance(stream);
        join(&mut self.host, &clock);
    }

    pub(crate) fn synchronize_all(&mut self) {
        for clock in &self.streams {
            join(&mut self.host, clock);
        }
    }

    pub(crate) fn host_write(&mut self, tensor: &Tensor) {
        self.host[0] += 1;
        self.operations += 1;
        let by = Access { stream: 0, time: self.host[0], number: self.operations, label: "upload".into() };
        let buffer = self.lent.written(tensor.buffer, self.operations);
        let cell = ByteRange { written: Some((buffer, by)), ..ByteRange::default() };
        self.memory.replace(tensor.range(), cell);
    }

    pub(crate) fn host_read(&mut self, tensor: &Tensor, names: &BufferNames) -> Result<()> {
        self.host[0] += 1;
        let by = Access { stream: 0, time: self.host[0], number: self.operations, label: "download".into() };
        let clock = self.host.clone();
        let meant = self.lent.meant(tensor.buffer);
        for (_, cell) in self.memory.cells(tensor.range()) {
            read_cell(cell, meant, &by, &clock, names, &mut self.checked)?;
        }
        Ok(())
    }

    pub(crate) fn allocate(&mut self, range: Range<u64>) {
        self.memory.remove(range);
    }

    /// Memory with values that others wrote.
    pub(crate) fn adopt(&mut self, range: Range<u64>) {
        self.host[0] += 1;
        let by = Access { stream: 0, time: self.host[0], number: self.operations, label: "adopt".into() };
        self.memory.replace(range, ByteRange { written: Some((BufferId::NOTHING, by)), ..ByteRange::default() });
    }

    pub(crate) fn free(&mut self, range: Range<u64>) {
        self.memory.replace(range, ByteRange { freed: true, ..ByteRange::default() });
    }
}

/// A range that a graph reads from outside, or leaves written.
#[derive(Clone, Debug)]
struct Effect {
    range: Range<u64>,
    buffer: BufferId,
    label: Rc<str>,
}

/// The reads and writes of a launch of a graph, seen from outside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    reads: Vec<Effect>,
    writes: Vec<Effect>,
}

/// Checks a graph's nodes against each other, and sums up the reads and writes of a launch.
///
/// # Errors
/// A race between nodes, or a read of a buffer another node overwrote.
pub(crate) fn graph_effects(nodes: &[Node], names: &BufferNames, checked: &mut Checked) -> Result<Effects> {
    let mut memory = MemoryMap::default();
    let mut effects = Effects::default();
    let mut clocks: Vec<Clock> = Vec::with_capacity(nodes.len());
    // By stream: the chain of its nodes, and the last node on it.
    let mut chains: HashMap<StreamId, (usize, usize)> = HashMap::new();
    let mut begun = 0;
    for (index, node) in nodes.iter().enumerate() {
        // On a chain each node waits for the one before it, so a node's number can be its time. A stream is a chain, until a
        // node does not wait: those of a child graph have the streams that they were captured on.
        let mut clock = Clock::new();
        for &dependency in &node.dependencies {
            join(&mut clock, &clocks[dependency]);
        }
        let chain = match chains.get(&node.stream) {
            Some(&(chain, last)) if clock.get(chain).is_some_and(|time| *time > last as u64) => chain,
            _ => {
                begun += 1;
                begun - 1
            }
        };
        chains.insert(node.stream, (chain, index));
        if clock.len() <= chain {
            clock.resize(chain + 1, 0);
        }
        clock[chain] = index as u64 + 1;
        let by = Access { stream: chain, time: index as u64 + 1, number: 0, label: node.label.clone() };
        for tensor in &node.accesses.reads {
            for (start, cell) in memory.cells(tensor.range()) {
                if cell.written.is_none() {
                    let range = start..cell.end;
                    effects.reads.push(Effect { range, buffer: tensor.buffer, label: node.label.clone() });
                    cell.reads.retain(|read| read.stream != by.stream);
                    cell.reads.push(by.clone());
                } else {
                    read_cell(cell, lent::Values::at_any_time(tensor.buffer), &by, &clock, names, checked)?;
                }
            }
        }
        for tensor in &node.accesses.writes {
            for (_, cell) in memory.cells(tensor.range()) {
                write_cell(cell, tensor.buffer, &by, &clock, names, checked)?;
            }
        }
        clocks.push(clock);
    }
    for (start, cell) in memory.cells {
        if let Some((buffer, writer)) = cell.written {
            effects.writes.push(Effect { range: start..cell.end, buffer, label: writer.label });
        }
    }
    Ok(effects)
}
