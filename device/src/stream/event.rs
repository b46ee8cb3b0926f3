//! Events: points of streams, in or out of a capture, that others wait for.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Stream, StreamId};
use crate::lane::Mark;
use crate::{CaptureRule, Device, Error, Result, TraceEvent};

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
}
