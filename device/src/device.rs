//! A device: its memory, its streams, and what is known of both.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::capture::Capture;
use crate::checker::Checker;
use crate::cuda::{Counters, Cuda, CudaOptions, DeviceBlock, GpuProperties, PinnedBlock};
use crate::host::memory::{Block, available};
use crate::host::{Pool, view};
use crate::lane::Backend;
use crate::stream::{StreamId, StreamState};
use crate::timeline::Recorder;
use crate::{
    BufferId, CaptureRule, CheckError, DType, Element, Error, Progress, Result, Shape, Staging, Stream, Tensor,
};

/// Every buffer begins at a multiple of this many bytes.
pub const ALIGNMENT: usize = 256;

/// Virtual addresses, given while nothing is allocated, begin here: far above any real one.
const VIRTUAL: u64 = 1 << 60;

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
    progress: Option<Progress>,
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

struct AreaInfo {
    end: u64,
    _memory: Memory,
}

/// What an area's addresses stand for.
#[allow(dead_code, reason = "held until the area is freed")]
enum Memory {
    /// Nothing: a dry device.
    None,
    Host(Block),
    Cuda(DeviceBlock),
}

/// Something submitted while tracing, in submission order.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// An operation would have run.
    Operation {
        /// Its stream.
        stream: StreamId,
        /// Buffers it reads or writes.
        buffers: Vec<BufferId>,
    },
    /// An event was recorded on a stream.
    Record {
        /// The stream.
        stream: StreamId,
        /// The event's number.
        event: u64,
    },
    /// A stream was made to wait for an event.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The event's number.
        event: u64,
    },
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
            streams: vec![StreamState::new("default", &backend, false)],
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

    /// Free and total bytes of the GPU's memory; nothing on the host.
    ///
    /// # Errors
    /// The driver's.
    pub fn gpu_memory(&self) -> Result<Option<(usize, usize)>> {
        match &self.peek().backend {
            Backend::Host(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.gpu.memory().map(Some),
        }
    }

    /// Bytes of the machine's memory that this process can still take, where the device computes in them and the system
    /// tells.
    pub fn free_host_memory(&self) -> Option<usize> {
        matches!(self.peek().backend, Backend::Host(_)).then(available).flatten()
    }

    /// The most bytes that one of the operations traced so far takes from the system while it runs; 0 on a GPU.
    pub fn host_scratch_bytes(&self) -> usize {
        self.peek().host_scratch
    }

    /// Whether the graph checker is on.
    pub fn is_checked(&self) -> bool {
        self.peek().checker.is_some()
    }

    /// What the GPU is; nothing on the host.
    pub fn gpu(&self) -> Option<GpuProperties> {
        match &self.peek().backend {
            Backend::Host(_) => None,
            Backend::Cuda(cuda) => Some(cuda.gpu.properties.clone()),
        }
    }

    /// Bytes of memory in use: on a GPU by this process and others, on the host by areas.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_in_use(&self) -> Result<usize> {
        match &self.peek().backend {
            Backend::Host(_) => Ok(self.allocated_bytes()),
            Backend::Cuda(cuda) => cuda.gpu.memory().map(|(free, total)| total - free),
        }
    }

    /// Bytes of all areas, and of the scratch memory that operations recorded so far need.
    pub fn allocated_bytes(&self) -> usize {
        let core = self.peek();
        let areas: u64 = core.areas.iter().map(|(start, area)| area.end - start).sum();
        areas as usize + core.streams.iter().map(|stream| stream.lane.scratch_bytes()).sum::<usize>()
    }

    /// What was done so far that a steady step must not do; on the host all 0.
    pub fn counters(&self) -> Counters {
        match &self.peek().backend {
            Backend::Host(_) => Counters::default(),
            Backend::Cuda(cuda) => *cuda.counters.borrow(),
        }
    }

    /// How matrix products are done on this GPU: text for [`Device::import_choices`] of other ranks, and of a run that goes
    /// on with this one's bits. Nothing on the host, which has no choice.
    pub fn export_choices(&self) -> Option<String> {
        match &self.peek().backend {
            Backend::Host(_) => None,
            Backend::Cuda(cuda) => Some(cuda.cublaslt.export()),
        }
    }

    /// Takes over the choices of another rank or run, in place of its own.
    ///
    /// # Errors
    /// The choices are for another GPU or version of cuBLASLt, or damaged.
    pub fn import_choices(&self, choices: &str) -> Result<()> {
        match &self.peek().backend {
            Backend::Host(_) => Ok(()),
            Backend::Cuda(cuda) => cuda.cublaslt.import(choices),
        }
    }

    /// A new stream, independent of the others.
    pub fn stream(&self, name: &str) -> Stream {
        self.add_stream(name, false)
    }

    /// A new stream for transfers between ranks. Where its work and another stream's are both ready, the GPU begins with
    /// its: a transfer needs little of the card and has other ranks wait, while a product that begins first takes it whole.
    pub fn transfer_stream(&self, name: &str) -> Stream {
        self.add_stream(name, true)
    }

    fn add_stream(&self, name: &str, urgent: bool) -> Stream {
        let mut core = self.core();
        let state = StreamState::new(name, &core.backend, urgent);
        core.streams.push(state);
        Stream::new(self.clone(), StreamId(core.streams.len() as u32 - 1))
    }

    /// CUDA's legacy default stream, which waits for all others: it exists to be refused while a capture is under way.
    pub fn default_stream(&self) -> Stream {
        Stream::new(self.clone(), StreamId::DEFAULT)
    }

    /// Allocates `bytes` of memory at an address that stays fixed until the area is dropped.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`CaptureRule::Allocation`] while a stream captures.
    pub fn allocate(&self, name: &str, bytes: usize) -> Result<Area> {
        let mut core = self.core();
        core.refuse_during_capture(CaptureRule::Allocation, || format!("`{name}` of {bytes} bytes was allocated"))?;
        let size = bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let (start, memory) = match &core.backend {
            _ if core.dry => (core.virtual_range(size), Memory::None),
            Backend::Host(_) => {
                let available =
                    available().map_or_else(|| "the host has less".into(), |free| format!("{free} are free"));
                let mut block =
                    Block::new(size).ok_or_else(|| Error::OutOfMemory { name: name.into(), bytes, available })?;
                (block.address(), Memory::Host(block))
            }
            Backend::Cuda(cuda) => {
                let block = cuda.allocate(name, size)?;
                (block.address(), Memory::Cuda(block))
            }
        };
        core.areas.insert(start, AreaInfo { end: start + size as u64, _memory: memory });
        core.allocations += 1;
        if let Some(checker) = &mut core.checker {
            checker.allocate(start..start + size as u64);
        }
        Ok(Area { device: self.clone(), start, bytes })
    }

    /// Names a buffer that memory will be planned for.
    pub fn name_buffer(&self, name: &str) -> BufferId {
        let mut core = self.core();
        core.buffers.push(name.into());
        BufferId(core.buffers.len() as u32 - 1)
    }

    /// The name a buffer was given.
    pub fn buffer_name(&self, buffer: BufferId) -> Rc<str> {
        self.peek().buffer_name(buffer)
    }

    /// A tensor with an address but no memory, for tracing.
    pub fn virtual_tensor(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let shape = shape.into();
        let buffer = self.name_buffer(name);
        let address = self.core().virtual_range((shape.elements() * dtype.size()).next_multiple_of(ALIGNMENT));
        Tensor { address, shape, dtype, buffer }
    }

    /// How often memory has been allocated so far.
    pub fn allocations(&self) -> u64 {
        self.peek().allocations
    }

    /// Writes host data to a tensor, waiting for everything submitted before: for set-up, not for steps.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while a stream captures; a type or size that differs.
    pub fn upload<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.check_image::<T>("upload", tensor, data.len())?;
        self.synchronize()?;
        let mut core = self.core();
        if core.dry {
            return Ok(());
        }
        core.check_live("upload", tensor)?;
        if let Some(checker) = &mut core.checker {
            checker.host_write(tensor);
        }
        match &core.backend {
            Backend::Host(_) => view::write::<T>(tensor).copy_from_slice(data),
            Backend::Cuda(cuda) => cuda.upload(tensor, data)?,
        }
        Ok(())
    }

    /// Sets every byte of a tensor to 0, waiting for everything submitted before: for set-up, not for steps.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while a stream captures; freed memory.
    pub fn zero(&self, tensor: &Tensor) -> Result<()> {
        self.synchronize()?;
        let mut core = self.core();
        if core.dry {
            return Ok(());
        }
        core.check_live("zero", tensor)?;
        if let Some(checker) = &mut core.checker {
            checker.host_write(tensor);
        }
        match &core.backend {
            Backend::Host(_) => view::zero(tensor),
            Backend::Cuda(cuda) => cuda.zero(tensor)?,
        }
        Ok(())
    }

    /// Page-locked memory for host arrays of these sizes in bytes; nothing on the host device.
    ///
    /// # Errors
    /// When the system cannot lock that much.
    pub fn staging(&self, bytes: impl IntoIterator<Item = usize>) -> Result<Staging> {
        match &self.peek().backend {
            Backend::Host(_) => Ok(Staging::default()),
            Backend::Cuda(cuda) => {
                let blocks: Vec<PinnedBlock> = bytes.into_iter().map(PinnedBlock::new).collect::<Result<_>>()?;
                cuda.counters.borrow_mut().allocations += blocks.len() as u64;
                Ok(Staging::new(blocks))
            }
        }
    }

    /// Reads a tensor back, waiting for everything submitted before: for set-up, tests and checkpoints, not for steps.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while a stream captures; a type that differs; freed memory.
    pub fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>> {
        self.check_image::<T>("download", tensor, tensor.elements())?;
        self.synchronize()?;
        let mut core = self.core();
        if core.dry {
            return Ok(vec![T::zeroed(); tensor.elements()]);
        }
        core.check_live("download", tensor)?;
        let core = &mut *core;
        if let Some(checker) = &mut core.checker {
            checker.host_read(tensor, &core.buffers)?;
        }
        match &core.backend {
            Backend::Host(_) => Ok(view::read::<T>(tensor).to_vec()),
            Backend::Cuda(cuda) => cuda.download(tensor),
        }
    }

    pub(crate) fn check_image<T: Element>(&self, what: &'static str, tensor: &Tensor, elements: usize) -> Result<()> {
        if tensor.dtype != T::DTYPE || tensor.elements() != elements {
            let problem = format!("{} {} for a tensor {:?} of {}", elements, T::DTYPE, tensor.shape, tensor.dtype);
            return Err(Error::operation(what, problem));
        }
        Ok(())
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

    /// From now on submissions are noted instead of run.
    pub fn begin_trace(&self) {
        self.core().trace = Some(Vec::new());
    }

    /// Number of events noted so far.
    pub fn trace_position(&self) -> usize {
        self.peek().trace.as_ref().map_or(0, Vec::len)
    }

    /// Ends the trace and returns what was noted.
    pub fn end_trace(&self) -> Vec<TraceEvent> {
        self.core().trace.take().unwrap_or_default()
    }
}

impl Core {
    pub(crate) fn buffer_name(&self, buffer: BufferId) -> Rc<str> {
        self.buffers[buffer.0 as usize].clone()
    }

    fn virtual_range(&mut self, bytes: usize) -> u64 {
        let start = self.next_virtual;
        self.next_virtual += bytes.max(ALIGNMENT) as u64;
        start
    }

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

    /// Fails unless the tensor lies in memory that is allocated.
    pub(crate) fn check_live(&self, user: &str, tensor: &Tensor) -> Result<()> {
        let range = tensor.range();
        let area = self.areas.range(..=range.start).next_back();
        if area.is_some_and(|(_, area)| range.end <= area.end) {
            return Ok(());
        }
        Err(CheckError::Freed { user: user.into(), buffer: self.buffer_name(tensor.buffer).to_string() }.into())
    }

    fn free(&mut self, start: u64) {
        if let Some(area) = self.areas.remove(&start) {
            self.frees += 1;
            if let Some(checker) = &mut self.checker {
                checker.free(start..area.end);
            }
        }
    }
}

/// Memory at a fixed address, given back when dropped.
pub struct Area {
    device: Device,
    start: u64,
    bytes: usize,
}

impl Area {
    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.start
    }

    /// Its size as asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A tensor at `offset` bytes, as a new buffer of that name.
    ///
    /// # Panics
    /// If it does not fit: offsets come from plans.
    pub fn tensor(&self, name: &str, offset: usize, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let buffer = self.device.name_buffer(name);
        self.place(buffer, offset, shape, dtype)
    }

    /// A tensor at `offset` bytes that is a view of a buffer named before.
    ///
    /// # Panics
    /// If it does not fit: offsets come from plans.
    pub fn place(&self, buffer: BufferId, offset: usize, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let shape = shape.into();
        let end = offset + shape.elements() * dtype.size();
        assert!(end <= self.bytes, "tensor ends at {end} in an area of {} bytes", self.bytes);
        Tensor { address: self.start + offset as u64, shape, dtype, buffer }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.device.core().free(self.start);
    }
}
