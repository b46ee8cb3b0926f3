//! The state that all submission to a device shares.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::memory::AreaInfo;
use super::{Listener, TraceEvent};
use crate::capture::{Capture, Checker};
use crate::dispatch::{DeviceBackend, Recorder, StreamBackend};
use crate::priority::Priority;
use crate::sync_debug::SyncWatch;
use crate::tensor::VIRTUAL;
use crate::{BufferNames, CaptureRule, Error, NvtxRange, Op, Progress, Result, StreamId, Tensor};

/// Fields drop in order: streams and memory before the backend that they came from.
pub(crate) struct Core {
    /// The device's number in the process.
    pub(crate) number: u32,
    pub(crate) streams: Vec<StreamState>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) next_id: u64,
    pub(crate) checker: Option<Checker>,
    pub(crate) trace: Option<Vec<TraceEvent>>,
    pub(crate) listener: Option<Listener>,
    pub(crate) dry: bool,
    /// The region that operations belong to, for messages and reports.
    pub(crate) scope: Rc<str>,
    /// Seed of the order in which a replay runs graph nodes; `None` for the captured order.
    pub(crate) shuffle: Option<u64>,
    pub(crate) recorder: Recorder,
    /// Whether there are NVTX ranges.
    pub(crate) nvtx: bool,
    /// Nanoseconds since 1970.
    pub(crate) timeline_began_ns: u64,
    pub(crate) progress: Option<Progress>,
    /// Counts frees, so that a graph knows when to check its addresses again.
    pub(crate) frees: u64,
    pub(super) areas: BTreeMap<u64, AreaInfo>,
    /// Areas that were dropped while a stream captured. Captured work may use them, and on a GPU memory cannot be freed
    /// during a capture. They are freed when no stream captures.
    pub(super) freed_later: Vec<u64>,
    pub(crate) buffers: BufferNames,
    pub(super) next_virtual: u64,
    pub(super) allocations: u64,
    /// The time that the system took to lock memory of the host.
    pub(super) locking: Duration,
    /// The most bytes that an operation traced so far allocates while it runs, on the host.
    pub(crate) host_scratch: usize,
    /// Launches of graphs with nodes that ran in another order than that of capture.
    pub(crate) reordered: u64,
    pub(crate) sync_watch: Rc<SyncWatch>,
    pub(crate) backend: DeviceBackend,
}

/// Held by all [`Stream`](crate::Stream)s of one number.
pub(crate) struct StreamHold;

/// A stream as its device knows it.
pub(crate) struct StreamState {
    pub(crate) name: Rc<str>,
    /// The hold that all [`Stream`](crate::Stream)s of this number share.
    held: Weak<StreamHold>,
    /// The priority, if a new stream may follow this stream once nobody holds it. `None` of the default stream, and of
    /// streams of other code.
    followed: Option<Priority>,
    /// The capture this stream is part of.
    pub(crate) capture: Option<u64>,
    pub(crate) backend: StreamBackend,
}

impl Core {
    pub(super) fn new(backend: DeviceBackend, check: bool, dry: bool) -> Core {
        static DEVICES: AtomicU32 = AtomicU32::new(0);
        let mut core = Core {
            number: 1 + DEVICES.fetch_add(1, Ordering::Relaxed),
            streams: Vec::new(),
            captures: BTreeMap::new(),
            next_id: 1,
            checker: check.then(Checker::new),
            trace: None,
            listener: None,
            dry,
            scope: "".into(),
            shuffle: None,
            recorder: Recorder::default(),
            nvtx: false,
            timeline_began_ns: 0,
            progress: None,
            frees: 0,
            areas: BTreeMap::new(),
            freed_later: Vec::new(),
            buffers: BufferNames::default(),
            next_virtual: VIRTUAL.start,
            allocations: 0,
            locking: Duration::ZERO,
            host_scratch: 0,
            reordered: 0,
            sync_watch: Rc::default(),
            backend,
        };
        core.buffers.add("nothing".into());
        core.add_stream("default", None);
        core
    }

    /// A stream of that priority that nobody holds any more, or a new one. The driver's stream stays: its work is in order, and
    /// what belongs to it, such as a lane of [peers](crate::cuda::Peers), is there again.
    pub(crate) fn open_stream(&mut self, name: &str, priority: Priority) -> (StreamId, Rc<StreamHold>) {
        let free = |stream: &StreamState| {
            stream.followed == Some(priority) && stream.held.strong_count() == 0 && stream.capture.is_none()
        };
        let id = match self.streams.iter().position(free) {
            Some(at) => {
                self.streams[at].name = name.into();
                StreamId(at as u32)
            }
            None => self.add_stream(name, Some(priority)),
        };
        (id, self.hold_stream(id))
    }

    /// A stream that no other one follows.
    pub(crate) fn open_lasting_stream(&mut self, name: &str) -> StreamId {
        self.add_stream(name, None)
    }

    fn add_stream(&mut self, name: &str, followed: Option<Priority>) -> StreamId {
        let backend = StreamBackend::new(&self.backend, followed.unwrap_or(Priority::Compute));
        self.streams.push(StreamState { name: name.into(), held: Weak::new(), followed, capture: None, backend });
        StreamId(self.streams.len() as u32 - 1)
    }

    pub(crate) fn hold_stream(&mut self, id: StreamId) -> Rc<StreamHold> {
        let held = &mut self.streams[id.index()].held;
        held.upgrade().unwrap_or_else(|| {
            let hold = Rc::new(StreamHold);
            *held = Rc::downgrade(&hold);
            hold
        })
    }

    /// An NVTX range with that name, if there are any.
    pub(crate) fn nvtx_range(&self, name: impl FnOnce() -> String) -> Option<NvtxRange> {
        self.nvtx.then(|| NvtxRange::new(&name()))
    }

    /// The name of an operation in its region.
    pub(crate) fn label(&self, op: &str) -> Rc<str> {
        if self.scope.is_empty() { op.into() } else { format!("{}/{op}", self.scope).into() }
    }

    /// Blocks until everything submitted to any stream is done. It waits for each stream: on a GPU a wait for the context
    /// fails while another thread captures.
    pub(crate) fn finish_all(&mut self) -> Result<()> {
        if let DeviceBackend::Cuda(cuda) = &self.backend {
            cuda.counters.borrow_mut().synchronizations += 1;
        }
        self.streams.iter_mut().try_for_each(|stream| stream.backend.finish())
    }

    /// An operation that is recorded or captured, with the buffers' own names.
    ///
    /// # Errors
    /// With the checker: a caller's operation that holds an address of the recording.
    pub(crate) fn as_recorded(&self, op: Op) -> Result<Op> {
        let Some(checker) = &self.checker else { return Ok(op) };
        if let Op::Custom(custom) = &op {
            custom.refuse_raw_address()?;
        }
        Ok(op.map(|tensor| Tensor { buffer: checker.lent.meant(tensor.buffer).of, ..tensor }))
    }

    /// Fails if a step is recorded: the call would do nothing.
    pub(crate) fn refuse_while_recording(&self, call: impl FnOnce() -> String) -> Result<()> {
        if self.trace.is_some() { Err(Error::recording(call())) } else { Ok(()) }
    }

    /// Fails, and spoils the captures under way, if any stream captures.
    /// `what` names the call, and the thing that it was made for.
    pub(crate) fn refuse_during_capture(
        &mut self,
        rule: CaptureRule,
        what: impl FnOnce(&Core) -> String,
    ) -> Result<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let error = Error::capture(rule, what(self));
        for capture in self.captures.values_mut() {
            capture.spoil(&error);
        }
        Err(error)
    }
}
