//! A device: its streams, and the state that all submission shares.

mod adopted;
mod area;
#[cfg(feature = "trainer-ops")]
mod choices;
mod copies;
mod core;
mod costly_calls;
mod facts;
mod lend;
mod memory;
mod nvtx;
mod snapshot;
mod timeline;
mod trace;

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

pub use area::Area;
pub(crate) use core::{Core, StreamHold};
pub use memory::{ALIGNMENT, Home};
pub use snapshot::Snapshot;
pub use trace::{Listener, Submission, TraceEvent};

use crate::dispatch::DeviceBackend;
use crate::gpu_types::CudaOptions;
use crate::host::HostDevice;
use crate::sync_debug::CostlyCall;
use crate::{CaptureRule, Error, Progress, Result, cuda};

/// A handle to one device, cheap to clone. A device is used from the thread that made it, and is not [`Send`]: another
/// thread makes a device of its own. The crate's README has an example.
#[derive(Clone)]
pub struct Device {
    core: Rc<RefCell<Core>>,
}

/// Options of a host device.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// Threads of the device's pool; at least 1.
    pub threads: usize,
    /// Check every operation and launch for races, for reads of overwritten or freed memory, and for reads of memory
    /// that nothing has written. Hold kernels to the memory that their operations declare. By default on in debug builds.
    pub check: bool,
    /// Allocate and run nothing: sizes and orders only.
    pub dry: bool,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions { threads: 1, check: cfg!(debug_assertions), dry: false }
    }
}

impl Device {
    /// A device on this machine's CPU.
    ///
    /// # Errors
    /// When its threads cannot be started. A build without the feature `host`.
    pub fn host(options: HostOptions) -> Result<Device> {
        let HostOptions { threads, check, dry } = options;
        Ok(Device::new(DeviceBackend::Host(HostDevice::new(threads, check)?), check, dry))
    }

    /// A GPU of this machine, used from this thread alone. A thread uses one GPU.
    ///
    /// # Errors
    /// No driver or no such GPU, one that is too old, a library that is missing, or a thread that uses another GPU. A build
    /// without the feature `cuda`.
    pub fn cuda(options: CudaOptions) -> Result<Device> {
        Ok(Device::new(DeviceBackend::Cuda(Box::new(cuda::open(options)?)), options.check, false))
    }

    fn new(backend: DeviceBackend, check: bool, dry: bool) -> Device {
        Device { core: Rc::new(RefCell::new(Core::new(backend, check, dry))) }
    }

    /// The state, for a call that returns errors.
    ///
    /// # Errors
    /// [`Error::Within`] if the code of an operation made `call`.
    pub(crate) fn core_for(&self, call: impl FnOnce() -> String) -> Result<RefMut<'_, Core>> {
        self.core.try_borrow_mut().map_err(|_| Error::within(call()))
    }

    /// The state, for a call that has no errors of its own, or that [`Device::core_for`] has let in before.
    ///
    /// # Panics
    /// If the code of an operation made the call.
    pub(crate) fn core(&self) -> RefMut<'_, Core> {
        self.core.try_borrow_mut().unwrap_or_else(|_| panic!("{}", Error::within("a call of its device")))
    }

    fn peek(&self) -> Ref<'_, Core> {
        self.core.try_borrow().unwrap_or_else(|_| panic!("{}", Error::within("a call of its device")))
    }

    /// Whether both are handles to one device.
    pub(crate) fn is(&self, other: &Device) -> bool {
        Rc::ptr_eq(&self.core, &other.core)
    }

    /// Whether nothing is allocated or run.
    pub fn is_dry(&self) -> bool {
        self.peek().dry
    }

    /// Switches dry mode on or off. In dry mode nothing is allocated or run: a plan's sizes are found before its memory
    /// is allocated.
    pub fn set_dry(&self, dry: bool) {
        self.core().dry = dry;
    }

    /// Blocks until everything submitted to any stream is done.
    ///
    /// # Errors
    /// [`Error::Recording`]; [`CaptureRule::Synchronization`] while a stream captures; a failed collective.
    pub fn synchronize(&self) -> Result<()> {
        let call = || "Device::synchronize".into();
        self.core_for(call)?.refuse_while_recording(call)?;
        self.core().hinders(CostlyCall::Waits, call)?;
        self.finish(|_| "Device::synchronize waits for all work of the device".into())
    }

    /// [`Device::synchronize`] as part of a call that waits. `what` names the call and the thing that it waits for.
    fn finish(&self, what: impl FnOnce(&Core) -> String) -> Result<()> {
        let mut core = self.core();
        core.refuse_during_capture(CaptureRule::Synchronization, what)?;
        let core = &mut *core;
        if !core.dry {
            core.finish_all()?;
        }
        if let Some(checker) = &mut core.checker {
            checker.synchronize_all();
        }
        Ok(())
    }

    /// From now on transfers leave marks in `progress`. [`Device::progress`] returns it to others that leave marks.
    ///
    /// # Errors
    /// When the GPU cannot write to its memory.
    pub fn watch(&self, progress: Progress) -> Result<()> {
        let mut core = self.core_for(|| "Device::watch".into())?;
        if let DeviceBackend::Cuda(cuda) = &mut core.backend {
            cuda.watch(progress.clone())?;
        }
        core.progress = Some(progress);
        Ok(())
    }

    /// The progress in which marks are left. `None` if nobody watches.
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

    /// The region that operations submitted now belong to.
    pub fn scope(&self) -> Rc<str> {
        self.peek().scope.clone()
    }

    /// From now on graphs replay their nodes in a random order that the dependencies allow, drawn from `seed`. `None`
    /// returns to the order of capture. Collectives of one communicator keep their order.
    pub fn shuffle_replays(&self, seed: Option<u64>) {
        self.core().shuffle = seed;
    }

    /// Launches so far with nodes that ran in another order than that of capture.
    pub fn reordered_launches(&self) -> u64 {
        self.peek().reordered
    }

    /// From now on submissions are noted instead of run: a step is recorded. Calls that read, wait or allocate fail with
    /// [`Error::Recording`].
    pub fn begin_trace(&self) {
        self.core().trace = Some(Vec::new());
    }

    /// From now on `listener` hears submissions while tracing, in order. `None`: nobody listens.
    pub fn listen(&self, listener: Option<Listener>) {
        self.core().listener = listener;
    }

    /// Whether submissions are noted instead of run.
    pub fn is_tracing(&self) -> bool {
        self.peek().trace.is_some()
    }

    /// Moves the events noted since the last call to the end of `events`.
    pub fn take_trace(&self, events: &mut Vec<TraceEvent>) {
        if let Some(trace) = &mut self.core().trace {
            events.append(trace);
        }
    }

    /// Ends the trace and returns the events noted since the last [`Device::take_trace`].
    pub fn end_trace(&self) -> Vec<TraceEvent> {
        self.core().trace.take().unwrap_or_default()
    }
}
