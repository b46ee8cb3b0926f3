//! Streams and events. Work of one stream runs in order; events order the work of several streams.

mod adopted;
mod capture;
mod copies;
mod event;
mod host_copy;

pub use event::Event;

use std::rc::Rc;

use crate::device::{Core, StreamHold};
use crate::dispatch::{DeviceBackend, Note};
use crate::ops::Poison;
use crate::priority::Priority;
use crate::submitted::Submitted;
use crate::sync_debug::CostlyCall;
use crate::{CaptureRule, Device, Op, Result, StreamId, Submission, TraceEvent};
pub use host_copy::{COPY_BLOCK, CopiedBytes, HostCopy, copy_blocks};

/// An ordered queue of work. On the host, work runs when it is submitted; only collectives run asynchronously.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    id: StreamId,
    _hold: Rc<StreamHold>,
}

impl Device {
    /// A new stream, independent of the others.
    pub fn stream(&self, name: &str) -> Stream {
        self.open_stream(name, Priority::Compute)
    }

    /// A new stream for transfers between ranks. When its work and another stream's are both ready, the GPU starts its
    /// work first. A transfer occupies little of the GPU and other ranks wait for it, while a matrix product that
    /// starts first occupies the whole GPU.
    pub fn transfer_stream(&self, name: &str) -> Stream {
        self.open_stream(name, Priority::Transfer)
    }

    /// A new stream for work that nothing waits for soon. When its work and another stream's are both ready, the GPU starts
    /// the other stream's first.
    pub fn background_stream(&self, name: &str) -> Stream {
        self.open_stream(name, Priority::Background)
    }

    fn open_stream(&self, name: &str, priority: Priority) -> Stream {
        let (id, hold) = self.core().open_stream(name, priority);
        Stream { device: self.clone(), id, _hold: hold }
    }

    /// The stream of that number. The number is its own as long as a [`Stream`] of it is held. After that a new stream may have
    /// it, whose work comes after all that was submitted to this one.
    pub fn stream_named(&self, id: StreamId) -> Stream {
        let hold = self.core().hold_stream(id);
        Stream { device: self.clone(), id, _hold: hold }
    }

    /// CUDA's legacy default stream. It waits for all others. It is here so that its use during a capture is refused.
    pub fn default_stream(&self) -> Stream {
        self.stream_named(StreamId::DEFAULT)
    }
}

impl Stream {
    /// The stream's number on the device.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs `op` after everything submitted to this stream before, or records it while the stream captures.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) when the tensors do not fit,
    /// [`Error::Unbound`](crate::Error::Unbound), a capture rule, a checker's finding, a failed collective.
    pub fn submit(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        op.check()?;
        self.announce(&op)?;
        self.submit_checked(op)
    }

    /// Leaves a progress mark on this stream that a transfer begins, on this stream or on another. Does nothing for
    /// other operations, and if nobody watches.
    ///
    /// # Errors
    /// As [`Stream::submit`].
    pub fn announce(&self, op: &Op) -> Result<()> {
        let Op::Collective(collective) = op else { return Ok(()) };
        let progress = self.device.core_for(|| format!("Stream::submit of `{}`", op.name()))?.progress.clone();
        let mark = progress.and_then(|progress| progress.transfer(collective));
        mark.map_or(Ok(()), |mark| self.submit_checked(mark.into()))
    }

    /// As [`Stream::submit`], for a transfer that another stream has announced.
    ///
    /// # Errors
    /// As [`Stream::submit`].
    pub fn submit_announced(&self, op: Op) -> Result<()> {
        op.check()?;
        self.submit_checked(op)
    }

    /// Traces, records or runs an operation after the check of its shapes and types.
    fn submit_checked(&self, op: Op) -> Result<()> {
        let mut core = self.device.core_for(|| format!("Stream::submit of `{}`", op.name()))?;
        let capturing = core.trace.is_none() && core.streams[self.id.index()].capture.is_some();
        let op = if capturing || core.trace.is_some() { core.as_recorded(op)? } else { op };
        core.backend.accept(&op, if capturing { Submitted::ToCapture } else { Submitted::ToRun })?;
        if core.trace.is_some() {
            let accesses = op.accesses();
            core.check_owns(op.name(), &accesses)?;
            let core = &mut *core;
            if let Some(listener) = &mut core.listener {
                listener(Submission::Operation { stream: self.id, op: &op, scope: &core.scope });
            }
            if let DeviceBackend::Host(host) = &core.backend {
                core.host_scratch = core.host_scratch.max(op.on_host().scratch_bytes(&host.pool));
            }
            core.streams[self.id.index()].backend.prepare(&op, &core.backend)?;
            let (op, scope) = (Box::new(op), core.scope.clone());
            let event = TraceEvent::Operation { stream: self.id, op, accesses, scope };
            core.trace.get_or_insert_default().push(event);
            return Ok(());
        }
        if core.dry {
            return Ok(());
        }
        self.refuse_default(&mut core, op.name())?;
        let label = core.label(op.name());
        if let Some(id) = core.streams[self.id.index()].capture {
            return core.with_capture(id, |core, capture| {
                let accesses = op.accesses();
                core.check_reachable(&label, &op, &accesses)?;
                let stream = &mut core.streams[self.id.index()];
                let note = core.recorder.operation(&stream.name, &label, Some(&op), true);
                capture.add(self.id, op.clone(), accesses, label)?;
                stream.backend.run(&op, &core.backend, true, note)
            });
        }
        self.refuse_outside(&mut core, &label)?;
        let accesses = op.accesses();
        core.check_reachable(&label, &op, &accesses)?;
        let core = &mut *core;
        if let Some(checker) = &mut core.checker {
            checker.operation(self.id, &label, &accesses, &core.buffers)?;
        }
        let before = core.counted();
        let stream = &mut core.streams[self.id.index()];
        if let (Some(_), DeviceBackend::Cuda(_), Op::Custom(custom)) = (&core.checker, &core.backend, &op) {
            // The host does so itself, also in graphs.
            let poisons = custom.written_alone().map(|output| Op::from(Poison { output }));
            poisons.into_iter().try_for_each(|op| stream.backend.run(&op, &core.backend, false, Note::Nothing))?;
        }
        let note = core.recorder.operation(&stream.name, &label, Some(&op), false);
        stream.backend.run(&op, &core.backend, false, note)?;
        core.hindered_since(before, || format!("the operation `{}`", op.name()))?;
        if let (DeviceBackend::Host(_), Some(progress)) = (&core.backend, &core.progress) {
            progress.advance();
        }
        Ok(())
    }

    /// Blocks the host until this stream's work is done.
    ///
    /// # Errors
    /// [`Error::Recording`](crate::Error::Recording); [`CaptureRule::Synchronization`] while any stream captures; a failed
    /// collective.
    pub fn synchronize(&self) -> Result<()> {
        let mut core = self.device.core_for(|| "Stream::synchronize".into())?;
        let name = core.streams[self.id.index()].name.clone();
        core.refuse_while_recording(|| format!("Stream::synchronize of stream `{name}`"))?;
        if core.dry {
            return Ok(());
        }
        core.refuse_during_capture(CaptureRule::Synchronization, |_| {
            format!("Stream::synchronize of stream `{name}` waits for its work")
        })?;
        core.hinders(CostlyCall::Waits, || format!("Stream::synchronize of stream `{name}`"))?;
        core.streams[self.id.index()].backend.finish()?;
        if let Some(checker) = &mut core.checker {
            checker.synchronize(self.id);
        }
        Ok(())
    }

    pub(crate) fn refuse_default(&self, core: &mut Core, what: &str) -> Result<()> {
        if self.id == StreamId::DEFAULT {
            core.refuse_during_capture(CaptureRule::Implicit, |_| {
                format!("`{what}` was submitted to the default stream")
            })?;
        }
        Ok(())
    }

    /// Fails if a capture is under way that does not include this stream.
    pub(crate) fn refuse_outside(&self, core: &mut Core, what: &str) -> Result<()> {
        let name = core.streams[self.id.index()].name.clone();
        core.refuse_during_capture(CaptureRule::Outside, |_| {
            format!("`{what}` was submitted to stream `{name}`, which is not part of the capture under way")
        })
    }
}
