//! A device: its streams, and the state that all submission shares.

mod area;
mod copies;
mod facts;
mod trace;

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

pub use area::{ALIGNMENT, Area};
use area::{AreaInfo, VIRTUAL};
pub use trace::TraceEvent;

use crate::capture::Capture;
use crate::checker::Checker;
use crate::cuda::{Cuda, CudaOptions};
use crate::host::Pool;
use crate::lane::{Backend, Priority};
use crate::stream::{StreamId, StreamState};
use crate::timeline::Recorder;
use crate::{CaptureRule, Error, Progress, Result, Stream};

/// A handle to one device, cheap to clone. A device is used from the thread that made it.
#[derive(Clone)]
pub struct Device {
    core: Rc<RefCell<Core>>,
}

/// How a host device is made.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// Threads of its pool; at least 1.
    pub threads: usize,
    /// Check every operation and launch for races, reads of overwritten or freed memory, and reads of nothing.
    pub check: bool,
    /// Allocate and run nothing: sizes and orders only.
    pub dry: bool,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions { threads: 1, check: false, dry: false }
    }
}

/// Fields drop in order: streams and memory before what they came from.
pub(crate) struct Core {
    pub(crate) streams: Vec<StreamState>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) next_id: u64,
    pub(crate) checker: Option<Checker>,
    pub(crate) trace: Option<Vec<TraceEvent>>,
    pub(crate) dry: bool,
    /// The region operations belong to, for messages and reports.
    pub(crate) scope: Rc<str>,
    /// Seed of the order in which graph nodes are replayed; `None` for the captured order.
    pub(crate) shuffle: Option<u64>,
    pub(crate) recorder: Recorder,
    /// Nanoseconds since 1970.
    pub(crate) timeline_began_ns: u64,
    pub(crate) progress: Option<Progress>,
    /// Counts frees, so that a graph knows when to look at its addresses again.
    pub(crate) frees: u64,
    areas: BTreeMap<u64, AreaInfo>,
    pub(crate) buffers: Vec<Rc<str>>,
    next_virtual: u64,
    allocations: u64,
    /// The most that an operation noted so far takes from the system while it runs, on the host.
    pub(crate) host_scratch: usize,
    /// Launches of graphs whose nodes did not run in the order of capture.
    pub(crate) reordered: u64,
    pub(crate) backend: Backend,
}

impl Device {
    /// A device on this machine's CPU.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn host(options: HostOptions) -> Result<Device> {
        let pool = Pool::new(options.threads)
            .map_err(|e| Error::operation("device", format!("cannot start {} threads: {e}", options.threads)))?;
        Ok(Device::new(Backend::Host(pool), options.check, options.dry))
    }

    /// A GPU of this machine, used from this thread alone.
    ///
    /// # Errors
    /// No driver or no such GPU, one that is too old, or a library that is missing.
    pub fn cuda(options: CudaOptions) -> Result<Device> {
        Ok(Device::new(Backend::Cuda(Box::new(Cuda::open(options)?)), options.check, false))
    }

    fn new(backend: Backend, check: bool, dry: bool) -> Device {
        let core = Core {
            streams: vec![StreamState::new("default", &backend, Priority::Compute)],
            captures: BTreeMap::new(),
            next_id: 1,
            checker: check.then(Checker::new),
            trace: None,
            dry,
            scope: "".into(),
            shuffle: None,
            recorder: Recorder::default(),
            timeline_began_ns: 0,
            progress: None,
            frees: 0,
            areas: BTreeMap::new(),
            buffers: vec!["nothing".into()],
            next_virtual: VIRTUAL,
            allocations: 0,
            host_scratch: 0,
            reordered: 0,
            backend,
        };
        Device { core: Rc::new(RefCell::new(core)) }
    }

    pub(crate) fn core(&self) -> RefMut<'_, Core> {
        self.core.borrow_mut()
    }

    fn peek(&self) -> Ref<'_, Core> {
        self.core.borrow()
    }

    /// Whether nothing is allocated or run.
    pub fn is_dry(&self) -> bool {
        self.peek().dry
    }

    /// From now on, or no longer, nothing is allocated or run: a plan's sizes are found before its memory is taken.
    pub fn set_dry(&self, dry: bool) {
        self.core().dry = dry;
    }

    /// A new stream, independent of the others.
    pub fn stream(&self, name: &str) -> Stream {
        self.add_stream(name, Priority::Compute)
    }

    /// A new stream for transfers between ranks. Where its work and another stream's are both ready, the GPU begins with
    /// its: a transfer needs little of the card and has other ranks wait, while a product that begins first takes it whole.
    pub fn transfer_stream(&self, name: &str) -> Stream {
        self.add_stream(name, Priority::Transfer)
    }

    fn add_stream(&self, name: &str, priority: Priority) -> Stream {
        let mut core = self.core();
        let state = StreamState::new(name, &core.backend, priority);
        core.streams.push(state);
        Stream::new(self.clone(), StreamId(core.streams.len() as u32 - 1))
    }

    /// CUDA's legacy default stream, which waits for all others: it exists to be refused while a capture is under way.
    pub fn default_stream(&self) -> Stream {
        Stream::new(self.clone(), StreamId::DEFAULT)
    }

    /// Waits until everything submitted to any stream is done.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while a stream captures; a failed collective.
    pub fn synchronize(&self) -> Result<()> {
        let mut core = self.core();
        core.refuse_during_capture(CaptureRule::Synchronization, || "the device was synchronized".into())?;
        let core = &mut *core;
        match &core.backend {
            Backend::Host(_) => core.streams.iter_mut().try_for_each(|stream| stream.lane.finish())?,
            Backend::Cuda(cuda) if !core.dry => cuda.synchronize()?,
            Backend::Cuda(_) => {}
        }
        if let Some(checker) = &mut core.checker {
            checker.synchronize_all();
        }
        Ok(())
    }

    /// From now on transfers leave marks in `progress`, and [`Device::progress`] has it for others that do.
    ///
    /// # Errors
    /// When the GPU cannot write to its memory.
    pub fn watch(&self, progress: Progress) -> Result<()> {
        let mut core = self.core();
        if let Backend::Cuda(cuda) = &mut core.backend {
            cuda.watch(progress.clone())?;
        }
        core.progress = Some(progress);
        Ok(())
    }

    /// Where marks are left, if somebody watches.
    pub fn progress(&self) -> Option<Progress> {
        self.peek().progress.clone()
    }

    /// Names the region that operations submitted from now on belong to, for messages and reports.
    pub fn set_scope(&self, scope: &str) {
        let mut core = self.core();
        if &*core.scope != scope {
            core.scope = scope.into();
        }
    }

    /// Replays graph nodes in a random order that their dependencies allow, drawn from `seed`, or again in the order
    /// of capture. Collectives of one communicator keep their order.
    pub fn shuffle_replays(&self, seed: Option<u64>) {
        self.core().shuffle = seed;
    }

    /// Launches so far whose nodes ran in another order than that of capture.
    pub fn reordered_launches(&self) -> u64 {
        self.peek().reordered
    }
}

impl Core {
    /// The name of an operation in its region.
    pub(crate) fn label(&self, op: &str) -> Rc<str> {
        if self.scope.is_empty() { op.into() } else { format!("{}/{op}", self.scope).into() }
    }

    /// Fails, and spoils the captures under way, when any stream captures.
    pub(crate) fn refuse_during_capture(&mut self, rule: CaptureRule, detail: impl FnOnce() -> String) -> Result<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let error = Error::capture(rule, detail());
        for capture in self.captures.values_mut() {
            capture.spoil(&error);
        }
        Err(error)
    }
}
