//! Events: points in streams, inside or outside of a capture, that others wait for.

use std::cell::RefCell;
use std::rc::Rc;

use super::Stream;
use crate::device::Core;
use crate::dispatch::RecordedPoint;
use crate::sync_debug::CostlyCall;
use crate::{CaptureRule, Device, Error, Result, StreamId, Submission, TraceEvent};

/// A point in a stream that other streams, or the host, can wait for.
#[derive(Clone)]
pub struct Event {
    state: Rc<RefCell<EventState>>,
    number: u64,
    /// The number of the event's device in the process.
    device: u32,
}

#[derive(Clone)]
enum EventState {
    Never,
    /// Recorded by work that ran.
    Recorded {
        stream: StreamId,
        point: RecordedPoint,
    },
    /// Recorded during a capture. A wait for it is a dependency on `nodes`.
    Captured {
        capture: u64,
        nodes: Vec<usize>,
        point: RecordedPoint,
    },
}

impl Device {
    /// A new event; waiting for one that was never recorded does nothing.
    pub fn event(&self) -> Event {
        let mut core = self.core();
        core.next_id += 1;
        Event { state: Rc::new(RefCell::new(EventState::Never)), number: core.next_id, device: core.number }
    }
}

impl EventState {
    fn point(&self) -> Option<&RecordedPoint> {
        match self {
            EventState::Never => None,
            EventState::Recorded { point, .. } | EventState::Captured { point, .. } => Some(point),
        }
    }
}

impl Event {
    fn check_own(&self, core: &Core, stream: StreamId) -> Result<()> {
        let of = || format!("stream `{}`", core.streams[stream.index()].name);
        if self.device == core.number { Ok(()) } else { Err(Error::other_device(&of(), "an event")) }
    }

    /// Blocks the host until the work before the event is done.
    ///
    /// # Errors
    /// [`Error::Recording`]; [`CaptureRule::Synchronization`] while a stream captures; [`CaptureRule::CapturedEvent`] if it
    /// was recorded in a capture.
    pub fn synchronize(&self, device: &Device) -> Result<()> {
        let mut core = device.core_for(|| "Event::synchronize".into())?;
        core.refuse_while_recording(|| "Event::synchronize".into())?;
        if core.dry {
            return Ok(());
        }
        core.refuse_during_capture(CaptureRule::Synchronization, |_| "Event::synchronize waits for an event".into())?;
        core.hinders(CostlyCall::Waits, || "Event::synchronize".into())?;
        match &*self.state.borrow() {
            EventState::Never => Ok(()),
            EventState::Recorded { stream, point } => {
                core.streams[stream.index()].backend.finish_up_to(point)?;
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
    /// Records the point that this stream has reached.
    ///
    /// # Errors
    /// [`CaptureRule::Implicit`] on the default stream during a capture.
    pub fn record(&self, event: &Event) -> Result<()> {
        let mut core = self.device.core_for(|| "Stream::record".into())?;
        event.check_own(&core, self.id)?;
        if let Some(trace) = &mut core.trace {
            trace.push(TraceEvent::Record { stream: self.id, event: event.number });
            if let Some(listener) = &mut core.listener {
                listener(Submission::Record { stream: self.id, event: event.number });
            }
            return Ok(());
        }
        self.refuse_default(&mut core, "event record")?;
        let core = &mut *core;
        self.refuse_spoiled(core, "event record")?;
        let stream = &core.streams[self.id.index()];
        let point = stream.backend.record(event.state.borrow().point())?;
        *event.state.borrow_mut() = match stream.capture {
            Some(capture) => EventState::Captured { capture, nodes: core.captures[&capture].frontier(self.id), point },
            None => EventState::Recorded { stream: self.id, point },
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
        let mut core = self.device.core_for(|| "Stream::wait".into())?;
        event.check_own(&core, self.id)?;
        if let Some(trace) = &mut core.trace {
            trace.push(TraceEvent::Wait { stream: self.id, event: event.number });
            if let Some(listener) = &mut core.listener {
                listener(Submission::Wait { stream: self.id, event: event.number });
            }
            return Ok(());
        }
        self.refuse_default(&mut core, "event wait")?;
        let core = &mut *core;
        self.refuse_spoiled(core, "event wait")?;
        let name = core.streams[self.id.index()].name.clone();
        match (&*event.state.borrow(), core.streams[self.id.index()].capture) {
            (EventState::Never, _) => Ok(()),
            (EventState::Recorded { stream, point }, None) => {
                match point {
                    // On the host all work is done already, except for collectives: wait for those.
                    RecordedPoint::Host(_) => core.streams[stream.index()].backend.finish_up_to(point)?,
                    RecordedPoint::Cuda(_) => core.streams[self.id.index()].backend.wait(point)?,
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
            (EventState::Captured { capture, nodes, point }, own) => {
                if !core.captures.contains_key(capture) || own.is_some_and(|own| own != *capture) {
                    let detail = format!("stream `{name}` waited for an event recorded in another or ended capture");
                    return Err(Error::capture(CaptureRule::CapturedEvent, detail));
                }
                core.with_capture(*capture, |core, under_way| {
                    under_way.refuse_spoiled("event wait")?;
                    let stream = &mut core.streams[self.id.index()];
                    stream.capture = Some(*capture);
                    stream.backend.wait(point)?;
                    under_way.depend(self.id, nodes);
                    Ok(())
                })
            }
        }
    }
}
