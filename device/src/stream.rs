//! Streams and events: what is submitted to a stream happens in order; events order streams.

use std::cell::RefCell;
use std::rc::Rc;

use crate::capture::Capture;
use crate::checker::Checker;
use crate::cuda::{Arriving, Counters};
use crate::device::Core;
use crate::host;
use crate::lane::{Backend, Lane, Mark};
use crate::{Accesses, CaptureRule, Device, Element, Error, Graph, HostArray, Op, Result, Tensor, TraceEvent};

/// Names a stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    pub(crate) const DEFAULT: StreamId = StreamId(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An ordered queue of work. On the host work runs where it is submitted; only collectives go on meanwhile.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    id: StreamId,
}

pub(crate) struct StreamState {
    pub(crate) name: Rc<str>,
    /// The capture this stream is part of.
    pub(crate) capture: Option<u64>,
    pub(crate) lane: Lane,
}

impl StreamState {
    pub(crate) fn new(name: &str, backend: &Backend, urgent: bool) -> StreamState {
        StreamState { name: name.into(), capture: None, lane: Lane::new(backend, urgent) }
    }
}

/// A copy to the host under way.
pub struct Readback<T> {
    values: Values<T>,
}

enum Values<T> {
    Here(Vec<T>),
    Arriving { copy: Rc<Arriving>, count: usize, counters: Rc<RefCell<Counters>> },
}

impl<T: Element> Readback<T> {
    pub(crate) fn here(values: Vec<T>) -> Readback<T> {
        Readback { values: Values::Here(values) }
    }

    pub(crate) fn arriving(copy: Rc<Arriving>, count: usize, counters: Rc<RefCell<Counters>>) -> Readback<T> {
        Readback { values: Values::Arriving { copy, count, counters } }
    }

    /// Waits for the copy and returns its values.
    ///
    /// # Errors
    /// What the device met on the way; on the host, nothing.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.values {
            Values::Here(values) => Ok(values),
            Values::Arriving { copy, count, counters } => {
                counters.borrow_mut().metric_waits += 1;
                copy.wait(count)
            }
        }
    }
}

/// A point in a stream that other streams, or the host, can wait for.
#[derive(Clone)]
pub struct Event {
    state: Rc<RefCell<EventState>>,
    number: u64,
}

#[derive(Clone)]
enum EventState {
    Never,
    /// Recorded by work that ran.
    Recorded {
        stream: StreamId,
        mark: Mark,
    },
    /// Recorded during a capture: these of its nodes.
    Captured {
        capture: u64,
        nodes: Vec<usize>,
        mark: Mark,
    },
}

impl Device {
    /// A new event; waiting for one that was never recorded does nothing.
    pub fn event(&self) -> Event {
        let mut core = self.core();
        core.next_id += 1;
        Event { state: Rc::new(RefCell::new(EventState::Never)), number: core.next_id }
    }
}

impl EventState {
    fn mark(&self) -> Option<&Mark> {
        match self {
            EventState::Never => None,
            EventState::Recorded { mark, .. } | EventState::Captured { mark, .. } => Some(mark),
        }
    }
}

impl Event {
    /// Blocks the host until the work before the event is done.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while a stream captures; [`CaptureRule::CapturedEvent`] if it was recorded in a
    /// capture.
    pub fn synchronize(&self, device: &Device) -> Result<()> {
        let mut core = device.core();
        if core.trace.is_some() || core.dry {
            return Ok(());
        }
        core.refuse_during_capture(CaptureRule::Synchronization, || "an event was synchronized".into())?;
        match &*self.state.borrow() {
            EventState::Never => Ok(()),
            EventState::Recorded { stream, mark } => {
                core.streams[stream.index()].lane.finish_up_to(mark)?;
                if let Some(checker) = &mut core.checker {
                    checker.host_wait(self.number);
                }
                Ok(())
            }
            EventState::Captured { .. } => {
                Err(Error::capture(CaptureRule::CapturedEvent, "an event recorded in a capture was synchronized"))
            }
        }
    }
}

impl Stream {
    pub(crate) fn new(device: Device, id: StreamId) -> Stream {
        Stream { device, id }
    }

    /// Its number on the device.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs `op` after everything submitted to this stream before, or records it while the stream captures.
    ///
    /// # Errors
    /// [`Error::Operation`] when the tensors do not fit, a capture rule, a checker's finding, a failed collective.
    pub fn submit(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        op.check()?;
        if let Op::Collective(collective) = &op {
            let marks = self.device.progress().map_or(Vec::new(), |progress| progress.transfer(collective));
            marks.into_iter().try_for_each(|mark| self.submit(mark))?;
        }
        let mut core = self.device.core();
        if let Some(trace) = &mut core.trace {
            let accesses = op.accesses();
            let buffers = accesses.reads.iter().chain(&accesses.writes).map(|tensor| tensor.buffer).collect();
            trace.push(TraceEvent::Operation { stream: self.id, buffers });
            let core = &mut *core;
            if let Backend::Host(pool) = &core.backend {
                core.host_scratch = core.host_scratch.max(host::scratch_bytes(&op, pool));
            }
            return core.streams[self.id.index()].lane.prepare(&op, &core.backend);
        }
        if core.dry {
            return Ok(());
        }
        self.refuse_default(&mut core, op.name())?;
        let label = core.label(op.name());
        if let Some(id) = core.streams[self.id.index()].capture {
            return core.with_capture(id, |core, capture| {
                let accesses = op.accesses();
                for tensor in accesses.reads.iter().chain(&accesses.writes) {
                    core.check_live(&label, tensor)?;
                }
                let stream = &mut core.streams[self.id.index()];
                let note = core.recorder.operation(&stream.name, &label, true);
                capture.add(self.id, op.clone(), accesses, label)?;
                stream.lane.run(&op, &core.backend, true, note)
            });
        }
        let accesses = op.accesses();
        for tensor in accesses.reads.iter().chain(&accesses.writes) {
            core.check_live(&label, tensor)?;
        }
        let core = &mut *core;
        if let Some(checker) = &mut core.checker {
            checker.operation(self.id, &label, &accesses, &core.buffers)?;
        }
        let stream = &mut core.streams[self.id.index()];
        let note = core.recorder.operation(&stream.name, &label, false);
        stream.lane.run(&op, &core.backend, false, note)
    }

    /// Copies host data to a tensor, in stream order, without waiting; `data` may be reused at once.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while this stream captures: a graph would repeat the same host data forever.
    pub fn write<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.copy_in::<T>(tensor, data.len(), |lane, backend| lane.write(tensor, data, backend))
    }

    /// As [`Stream::write`], without a copy on the host where the array is in page-locked memory.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn send<T: Element>(&self, tensor: &Tensor, data: &HostArray<T>) -> Result<()> {
        self.copy_in::<T>(tensor, data.len(), |lane, backend| lane.send(tensor, data, backend))
    }

    fn copy_in<T: Element>(
        &self,
        tensor: &Tensor,
        elements: usize,
        copy: impl FnOnce(&mut Lane, &Backend) -> Result<()>,
    ) -> Result<()> {
        self.device.check_image::<T>("write", tensor, elements)?;
        let mut core = self.device.core();
        let core = &mut *core;
        if core.trace.is_some() || core.dry {
            return Ok(());
        }
        if core.streams[self.id.index()].capture.is_some() {
            return core.refuse_during_capture(CaptureRule::Synchronization, || "host data was copied".into());
        }
        core.check_live("write", tensor)?;
        if let Some(checker) = &mut core.checker {
            let accesses = Accesses::new([], [*tensor]);
            checker.operation(self.id, &"write".into(), &accesses, &core.buffers)?;
        }
        let label = core.label("write");
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, false);
        copy(&mut stream.lane, &core.backend)
    }

    /// Copies a tensor to the host, in stream order. The values are there once the returned copy has been waited for.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while this stream captures; a checker's finding.
    pub fn read<T: Element>(&self, tensor: &Tensor) -> Result<Readback<T>> {
        self.device.check_image::<T>("read", tensor, tensor.elements())?;
        let mut core = self.device.core();
        let core = &mut *core;
        if core.trace.is_some() || core.dry {
            return Ok(Readback::here(vec![T::zeroed(); tensor.elements()]));
        }
        if core.streams[self.id.index()].capture.is_some() {
            core.refuse_during_capture(CaptureRule::Synchronization, || "data was copied to the host".into())?;
        }
        core.check_live("read", tensor)?;
        if let Some(checker) = &mut core.checker {
            let accesses = Accesses::new([*tensor], []);
            checker.operation(self.id, &"read".into(), &accesses, &core.buffers)?;
        }
        let label = core.label("read");
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, false);
        stream.lane.read(tensor, &core.backend)
    }

    /// Marks the point this stream has reached.
    ///
    /// # Errors
    /// [`CaptureRule::Implicit`] on the default stream during a capture.
    pub fn record(&self, event: &Event) -> Result<()> {
        let mut core = self.device.core();
        if let Some(trace) = &mut core.trace {
            trace.push(TraceEvent::Record { stream: self.id, event: event.number });
            return Ok(());
        }
        self.refuse_default(&mut core, "event record")?;
        let core = &mut *core;
        let stream = &core.streams[self.id.index()];
        let mark = stream.lane.mark(event.state.borrow().mark())?;
        *event.state.borrow_mut() = match stream.capture {
            Some(capture) => EventState::Captured { capture, nodes: core.captures[&capture].frontier(self.id), mark },
            None => EventState::Recorded { stream: self.id, mark },
        };
        if let (None, Some(checker)) = (stream.capture, &mut core.checker) {
            checker.record(self.id, event.number);
        }
        Ok(())
    }

    /// Everything submitted to this stream from now on happens after the event.
    ///
    /// A stream that waits for an event of a capture becomes part of that capture.
    ///
    /// # Errors
    /// [`CaptureRule::Isolation`], [`CaptureRule::CapturedEvent`], [`CaptureRule::Implicit`]; a failed collective.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let mut core = self.device.core();
        if let Some(trace) = &mut core.trace {
            trace.push(TraceEvent::Wait { stream: self.id, event: event.number });
            return Ok(());
        }
        self.refuse_default(&mut core, "event wait")?;
        let core = &mut *core;
        let name = core.streams[self.id.index()].name.clone();
        match (&*event.state.borrow(), core.streams[self.id.index()].capture) {
            (EventState::Never, _) => Ok(()),
            (EventState::Recorded { stream, mark }, None) => {
                match mark {
                    // Host work is in the past but for collectives, which somebody has to wait for.
                    Mark::Host(_) => core.streams[stream.index()].lane.finish_up_to(mark)?,
                    Mark::Cuda(_) => core.streams[self.id.index()].lane.wait(mark)?,
                }
                if let Some(checker) = &mut core.checker {
                    checker.wait(self.id, event.number);
                }
                Ok(())
            }
            (EventState::Recorded { .. }, Some(capture)) => core.with_capture(capture, |_, _| {
                let detail = format!("captured stream `{name}` waited for an event recorded outside the capture");
                Err(Error::capture(CaptureRule::Isolation, detail))
            }),
            (EventState::Captured { capture, nodes, mark }, own) => {
                if !core.captures.contains_key(capture) || own.is_some_and(|own| own != *capture) {
                    let detail = format!("stream `{name}` waited for an event recorded in another or ended capture");
                    return Err(Error::capture(CaptureRule::CapturedEvent, detail));
                }
                core.streams[self.id.index()].capture = Some(*capture);
                core.streams[self.id.index()].lane.wait(mark)?;
                core.with_capture(*capture, |_, capture| {
                    capture.depend(self.id, nodes);
                    Ok(())
                })
            }
        }
    }

    /// Blocks the host until this stream's work is done.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while any stream captures; a failed collective.
    pub fn synchronize(&self) -> Result<()> {
        let mut core = self.device.core();
        if core.trace.is_some() || core.dry {
            return Ok(());
        }
        let name = core.streams[self.id.index()].name.clone();
        core.refuse_during_capture(CaptureRule::Synchronization, || format!("stream `{name}` was synchronized"))?;
        core.streams[self.id.index()].lane.finish()?;
        if let Some(checker) = &mut core.checker {
            checker.synchronize(self.id);
        }
        Ok(())
    }

    /// From now on what is submitted to this stream, and to streams that fork from it by an event, is recorded.
    ///
    /// # Errors
    /// [`CaptureRule::Implicit`] on the default stream; [`CaptureRule::Invalidated`] if it captures already.
    pub fn begin_capture(&self) -> Result<()> {
        let mut core = self.device.core();
        if self.id == StreamId::DEFAULT {
            return Err(Error::capture(CaptureRule::Implicit, "a capture was begun on the default stream"));
        }
        if core.streams[self.id.index()].capture.is_some() {
            let detail =
                format!("a capture was begun on stream `{}`, which captures", core.streams[self.id.index()].name);
            return Err(Error::capture(CaptureRule::Invalidated, detail));
        }
        let core = &mut *core;
        core.streams[self.id.index()].lane.begin_capture(&core.backend)?;
        core.next_id += 1;
        let id = core.next_id;
        core.captures.insert(id, Capture::new(self.id));
        core.streams[self.id.index()].capture = Some(id);
        Ok(())
    }

    /// Ends the capture begun on this stream and returns what was recorded, ready to launch.
    ///
    /// # Errors
    /// [`CaptureRule::Invalidated`] if a call failed during it, [`CaptureRule::Unjoined`], or with the checker on a race
    /// or a read of an overwritten buffer inside the graph. The capture is over in any case.
    pub fn end_capture(&self, name: &str) -> Result<Graph> {
        let mut core = self.device.core();
        let core = &mut *core;
        let id = core.streams[self.id.index()].capture;
        let begun_here = id.is_some_and(|id| core.captures[&id].origin() == self.id);
        let Some(capture) = id.filter(|_| begun_here).and_then(|id| core.captures.remove(&id)) else {
            let detail = format!("no capture was begun on stream `{}`", core.streams[self.id.index()].name);
            return Err(Error::capture(CaptureRule::Invalidated, detail));
        };
        for stream in &mut core.streams {
            if stream.capture == id {
                stream.capture = None;
            }
        }
        let lane = &core.streams[self.id.index()].lane;
        let checked = capture.finish(|stream| core.streams[stream.index()].name.to_string()).and_then(|nodes| {
            let check = |_: &Checker| crate::checker::graph_effects(&nodes, &core.buffers);
            let effects = core.checker.as_ref().map(check).transpose()?;
            Ok((nodes, effects))
        });
        if checked.is_err() {
            lane.abandon_capture();
        }
        let (nodes, effects) = checked?;
        let raw = lane.end_capture(&core.backend)?;
        Ok(Graph::new(self.device.clone(), name, nodes, effects, raw, core.frees))
    }

    /// Gives up the capture begun on this stream, if any.
    pub fn abandon_capture(&self) {
        let mut core = self.device.core();
        if let Some(id) = core.streams[self.id.index()].capture {
            core.captures.remove(&id);
            for stream in &mut core.streams {
                if stream.capture == Some(id) {
                    stream.capture = None;
                }
            }
            core.streams[self.id.index()].lane.abandon_capture();
        }
    }

    pub(crate) fn refuse_default(&self, core: &mut Core, what: &str) -> Result<()> {
        if self.id == StreamId::DEFAULT {
            core.refuse_during_capture(CaptureRule::Implicit, || {
                format!("`{what}` was submitted to the default stream")
            })?;
        }
        Ok(())
    }
}

impl Core {
    /// Does something to a capture; a failure spoils it.
    fn with_capture(&mut self, id: u64, work: impl FnOnce(&mut Core, &mut Capture) -> Result<()>) -> Result<()> {
        let Some(mut capture) = self.captures.remove(&id) else {
            return Err(Error::capture(CaptureRule::Invalidated, "the capture is over"));
        };
        let result = work(self, &mut capture);
        if let Err(error) = &result {
            capture.spoil(error);
        }
        self.captures.insert(id, capture);
        result
    }
}
