//! A stream's capture, from its beginning to its graph.

use super::Stream;
use crate::capture::Capture;
use crate::checker::{Checker, graph_effects};
use crate::device::Core;
use crate::{CaptureRule, Error, Graph, Result, StreamId};

impl Stream {
    /// From now on what is submitted to this stream, and to streams that fork from it by an event, is recorded and not
    /// run.
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
        core.streams[self.id.index()].backend.begin_capture(&core.backend)?;
        core.next_id += 1;
        let id = core.next_id;
        core.captures.insert(id, Capture::new(self.id));
        core.streams[self.id.index()].capture = Some(id);
        Ok(())
    }

    /// Whether this stream captures.
    pub fn is_capturing(&self) -> bool {
        self.device.core().streams[self.id.index()].capture.is_some()
    }

    /// Ends the capture begun on this stream and returns what was recorded, ready to launch.
    ///
    /// # Errors
    /// [`CaptureRule::Invalidated`] if a call failed during it, [`CaptureRule::Unjoined`], or with the checker on a
    /// race or a read of an overwritten buffer inside the graph. The capture is over in any case.
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
        let stream = &core.streams[self.id.index()].backend;
        let checked = capture.finish(|stream| core.streams[stream.index()].name.to_string()).and_then(|nodes| {
            let check = |checker: &mut Checker| graph_effects(&nodes, &core.buffers, &mut checker.checked);
            let effects = core.checker.as_mut().map(check).transpose()?;
            Ok((nodes, effects))
        });
        if checked.is_err() {
            stream.abandon_capture();
        }
        let (nodes, effects) = checked?;
        let raw = stream.end_capture(&core.backend)?;
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
            core.streams[self.id.index()].backend.abandon_capture();
        }
    }
}

impl Core {
    /// Does something to a capture. A failure spoils it.
    pub(crate) fn with_capture(
        &mut self,
        id: u64,
        work: impl FnOnce(&mut Core, &mut Capture) -> Result<()>,
    ) -> Result<()> {
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
