//! A stream's capture, from its beginning to its graph.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::Stream;
use crate::capture::{Capture, graph_effects};
use crate::device::{Core, StreamHold};
use crate::graph::Captured;
use crate::{CaptureMode, CaptureRule, Error, Graph, Result, StreamId};

/// A capture as it ends.
struct Taken {
    capture: Capture,
    /// The names of all streams.
    names: Vec<Rc<str>>,
    /// The streams that were part of the capture.
    streams: Vec<Rc<StreamHold>>,
}

impl Stream {
    /// From now on operations submitted to this stream, and to streams that fork from it by an event, are recorded and
    /// not run.
    ///
    /// # Errors
    /// [`CaptureRule::Implicit`] on the default stream; [`CaptureRule::Begun`] if it captures already, and then that
    /// capture goes on; [`Error::Recording`].
    pub fn begin_capture(&self) -> Result<()> {
        self.begin_capture_in(CaptureMode::default())
    }

    /// As [`Stream::begin_capture`], in a mode: it decides which calls of other code the driver refuses meanwhile.
    ///
    /// # Errors
    /// As [`Stream::begin_capture`].
    pub fn begin_capture_in(&self, mode: CaptureMode) -> Result<()> {
        let mut core = self.device.core_for(|| "Stream::begin_capture".into())?;
        let stream = core.streams[self.id.index()].name.clone();
        core.refuse_while_recording(|| format!("Stream::begin_capture of stream `{stream}`"))?;
        if self.id == StreamId::DEFAULT {
            return Err(Error::capture(CaptureRule::Implicit, "a capture was begun on the default stream"));
        }
        if let Some(capture) = core.streams[self.id.index()].capture.and_then(|id| core.captures.get(&id)) {
            let origin = &core.streams[capture.origin().index()].name;
            let detail =
                format!("Stream::begin_capture of stream `{stream}`, which is part of the capture of `{origin}`");
            return Err(Error::capture(CaptureRule::Begun, detail));
        }
        let core = &mut *core;
        core.streams[self.id.index()].backend.begin_capture(&core.backend, mode)?;
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

    /// Ends the capture begun on this stream and returns the recorded graph, ready to launch.
    ///
    /// # Errors
    /// [`CaptureRule::NotBegun`]; [`CaptureRule::Unmatched`] if it was begun on another stream, and then it goes on;
    /// [`CaptureRule::Invalidated`] if a call failed during it, [`CaptureRule::Unjoined`], or with the checker on a
    /// race or a read of an overwritten buffer inside the graph: then it is over.
    pub fn end_capture(&self, name: &str) -> Result<Graph> {
        let Taken { capture, names, mut streams } = self.take_capture(name)?;
        // Nodes may hold the last handle to an area. Its drop borrows the core. So they are dropped after it.
        let nodes = capture.finish(|stream| names[stream.index()].to_string());
        let _freed;
        let mut core = self.device.core();
        let core = &mut *core;
        let result = match &nodes {
            Err(error) => Err(error.clone()),
            Ok(nodes) => match &mut core.checker {
                Some(checker) => graph_effects(nodes, &core.buffers, &mut checker.checked).map(Some),
                None => Ok(None),
            },
        };
        let stream = &core.streams[self.id.index()].backend;
        let result = match result {
            Ok(effects) => {
                let _range = core.nvtx_range(|| format!("instantiate {name}"));
                stream.end_capture(&core.backend).map(|raw| (effects, raw))
            }
            Err(error) => {
                stream.abandon_capture();
                Err(error)
            }
        };
        let checked_at = core.frees;
        _freed = core.free_deferred();
        let ((effects, raw), nodes) = (result?, nodes?);
        let of_nodes: BTreeSet<StreamId> = nodes.iter().map(|node| node.stream).collect();
        streams.extend(of_nodes.into_iter().map(|stream| core.hold_stream(stream)));
        Ok(Graph::new(self.device.clone(), name, Captured { nodes, effects, raw, streams }, checked_at))
    }

    /// Ends the capture begun on this stream.
    fn take_capture(&self, graph: &str) -> Result<Taken> {
        let mut core = self.device.core_for(|| "Stream::end_capture".into())?;
        let core = &mut *core;
        let id = core.streams[self.id.index()].capture;
        let call =
            || format!("Stream::end_capture of graph `{graph}` on stream `{}`", core.streams[self.id.index()].name);
        if let Some(origin) = id.map(|id| core.captures[&id].origin()).filter(|origin| *origin != self.id) {
            let detail =
                format!("{}, whose capture was begun on stream `{}`", call(), core.streams[origin.index()].name);
            return Err(Error::capture(CaptureRule::Unmatched, detail));
        }
        let Some(capture) = id.and_then(|id| core.captures.remove(&id)) else {
            return Err(Error::capture(CaptureRule::NotBegun, format!("{}, which does not capture", call())));
        };
        let mut streams = Vec::new();
        for stream in (0..core.streams.len() as u32).map(StreamId) {
            if core.streams[stream.index()].capture == id {
                core.streams[stream.index()].capture = None;
                streams.push(core.hold_stream(stream));
            }
        }
        let names = core.streams.iter().map(|stream| stream.name.clone()).collect();
        Ok(Taken { capture, names, streams })
    }

    /// Gives up the capture begun on this stream, if any.
    pub fn abandon_capture(&self) {
        let _freed;
        let mut core = self.device.core();
        let Some(id) = core.streams[self.id.index()].capture else { return };
        let capture = core.captures.remove(&id);
        for stream in &mut core.streams {
            if stream.capture == Some(id) {
                stream.capture = None;
            }
        }
        core.streams[self.id.index()].backend.abandon_capture();
        _freed = core.free_deferred();
        // Its nodes may hold the last handle to an area. Its drop borrows the core.
        drop(core);
        drop(capture);
    }
}

impl Stream {
    /// Fails with the first mistake of the capture that this stream is part of, if there was one. The driver would refuse
    /// the call too, and would not say why.
    pub(super) fn refuse_spoiled(&self, core: &Core, call: &str) -> Result<()> {
        let capture = core.streams[self.id.index()].capture.and_then(|id| core.captures.get(&id));
        capture.map_or(Ok(()), |capture| capture.refuse_spoiled(call))
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
