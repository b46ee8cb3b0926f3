//! The stand-in for the CUDA device in a build without the feature `cuda`. Its types have no values, so the code that
//! uses them compiles and is never reached. The words for work on a GPU are there.

#![allow(dead_code, unused_variables, reason = "nothing can call it")]

use std::any::Any;
use std::cell::RefCell;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use bytemuck::Pod;

use crate::host_memory::{ArrayColumns, HostBlock};
use crate::priority::Priority;
use crate::submitted::Submitted;
use crate::timeline::Span;
use crate::uncallable::uncallable;
use crate::{CaptureMode, Element, Error, HostArray, Op, Progress, Result, Tensor};

pub use crate::gpu_types::*;

/// The number of GPUs that this process can use: none.
pub fn gpu_count() -> usize {
    0
}

/// Why this process sees no GPU.
pub fn why_no_gpu() -> Option<NoGpu> {
    Some(NoGpu { why: "this program was built without CUDA".into(), fix: FIX })
}

/// Compiles nothing.
pub fn compile_sets(gpu: &GpuProperties) {}

/// The libraries that the device uses: none.
pub fn library_versions() -> Vec<(&'static str, Option<String>)> {
    Vec::new()
}

const FIX: &str = "build it with the feature `cuda-13000` of the crates graph-manager and graph-manager-device";

fn no_cuda<T>() -> Result<T> {
    Err(Error::operation("device", format!("this program was built without CUDA. Fix: {FIX}")))
}

/// Memory shared by the GPUs of one node.
pub struct Peers(Infallible);

pub(crate) struct CudaDevice {
    pub(crate) gpu: Gpu,
    #[cfg(feature = "trainer-ops")]
    pub(crate) cublaslt: CublasLt,
    pub(crate) kernels: Kernels,
    pub(crate) counters: Rc<RefCell<Counters>>,
}

pub(crate) struct Gpu {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) properties: GpuProperties,
}

#[cfg(feature = "trainer-ops")]
pub(crate) struct CublasLt(Infallible);
pub(crate) struct Kernels(Infallible);
pub(crate) struct PrimaryContext(Infallible);
pub(crate) struct PageLocked(Infallible);
pub(crate) struct DeviceMemory(Infallible);
pub(crate) struct CudaStream(Infallible);
pub(crate) struct RawStream(Infallible);
pub(crate) struct RawEvent(Infallible);
pub(crate) struct RawGraph(Infallible);
pub(crate) struct PendingCopy(Infallible);
pub(crate) struct Cupti(Infallible);
pub(crate) struct CuptiNote(Infallible);

pub(crate) struct Queue<'a> {
    pub(crate) scratch: u64,
    none: Infallible,
    kernels: PhantomData<&'a ()>,
}

uncallable! {
    CudaDevice {
        pub(crate) fn allocate(&self, name: &str, bytes: usize) -> Result<DeviceMemory>;
        pub(crate) fn watch(&mut self, progress: Progress) -> Result<()>;
        pub(crate) fn upload<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()>;
        pub(crate) fn zero(&self, tensor: &Tensor) -> Result<()>;
        pub(crate) fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>>;
        pub(crate) fn put_aside(&self, parts: &[(Tensor, usize)], block: &HostBlock) -> Result<()>;
        pub(crate) fn bring_back(&self, parts: &[(Tensor, usize)], block: &HostBlock) -> Result<()>;
        pub(crate) fn digests(&self, tensors: &[Tensor]) -> Result<Vec<u64>>;
    }

    Gpu {
        pub(crate) fn memory(&self) -> Result<(usize, usize)>;
    }

    #[cfg(feature = "trainer-ops")]
    CublasLt {
        pub(crate) fn export(&self) -> String;
        pub(crate) fn import(&self, choices: &str) -> Result<()>;
    }

    Queue<'a> {
        pub(crate) fn launch(&self, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()>;
        pub(crate) fn launch_block<T: Pod>(&self, kernel: &str, grid: Grid, block: &T) -> Result<()>;
        pub(crate) fn set_bytes(&self, address: u64, value: u8, bytes: usize) -> Result<()>;
        pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()>;
        pub(crate) fn gpu(&self) -> &GpuProperties;
        pub(crate) fn multiprocessors(&self) -> usize;
    }

    PrimaryContext {
        pub(crate) fn enter(&self) -> Result<()>;
    }

    PageLocked {
        pub(crate) fn start(&self) -> *mut u8;
    }

    DeviceMemory {
        pub(crate) fn address(&self) -> u64;
    }

    CudaStream {
        pub(crate) fn adopt(&mut self, handle: StreamHandle, owner: Box<dyn Any>) -> Result<()>;
        pub(crate) fn raw(&self) -> Result<Rc<RawStream>>;
        pub(crate) fn made(&self) -> Option<Rc<RawStream>>;
        pub(crate) fn prepare(&mut self, op: &Op, cuda: &CudaDevice) -> Result<()>;
        pub(crate) fn scratch_bytes(&self) -> usize;
        pub(crate) fn free_scratch(&mut self);
        pub(crate) fn provide_scratch(&mut self, cuda: &CudaDevice) -> Result<()>;
        pub(crate) fn run(&mut self, op: &Op, cuda: &CudaDevice, capturing: bool) -> Result<()>;
        pub(crate) fn record(&self, event: Rc<RawEvent>) -> Result<Rc<RawEvent>>;
        pub(crate) fn copy_out(&self, part: &Tensor, block: &HostBlock, at: usize) -> Result<()>;
        pub(crate) fn mark(&self) -> Result<RawEvent>;
        pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T], cuda: &CudaDevice) -> Result<()>;
        pub(crate) fn send<T: Element>(
            &mut self, tensor: &Tensor, data: &HostArray<T>, columns: ArrayColumns, cuda: &CudaDevice
        ) -> Result<()>;
        pub(crate) fn read(&mut self, tensor: &Tensor, cuda: &CudaDevice) -> Result<PendingCopy>;
    }

    RawStream {
        pub(crate) fn synchronize(&self) -> Result<()>;
        pub(crate) fn wait(&self, event: &RawEvent) -> Result<()>;
        pub(crate) fn begin_capture(&self, mode: CaptureMode) -> Result<()>;
        pub(crate) fn abandon_capture(&self);
    }

    RawEvent {
        pub(crate) fn synchronize(&self) -> Result<()>;
        pub(crate) fn await_asleep(&self) -> Result<()>;
    }

    RawGraph {
        pub(crate) fn end_capture(stream: &RawStream, kernels: &Kernels) -> Result<RawGraph>;
        pub(crate) fn add_to_capture(&self, stream: &RawStream) -> Result<()>;
        pub(crate) fn launch(&self, stream: &RawStream) -> Result<()>;
        pub(crate) fn driver_bytes(&self) -> i64;
        pub(crate) fn dot(&self) -> Result<String>;
    }

    PendingCopy {
        pub(crate) fn wait<T: Element>(self) -> Result<Vec<T>>;
    }

    Cupti {
        pub(crate) fn is_running(&self) -> bool;
        pub(crate) fn submit(
            &self, label: &str, graph: Option<&str>, details: impl FnOnce() -> Vec<(&'static str, String)>,
            capturing: bool
        ) -> Option<CuptiNote>;
        pub(crate) fn begin(&self) -> Result<()>;
        pub(crate) fn end<'a>(&self, streams: impl Iterator<Item = (Rc<RawStream>, &'a str)>) -> Result<Vec<Span>>;
    }
}

impl PageLocked {
    pub(crate) fn new(bytes: usize) -> Result<PageLocked> {
        no_cuda()
    }
}

impl CudaStream {
    pub(crate) fn new(priority: Priority) -> CudaStream {
        unreachable!("a stream is of its device's kind")
    }
}

impl RawEvent {
    pub(crate) fn new() -> Result<RawEvent> {
        no_cuda()
    }
}

impl Cupti {
    pub(crate) fn open() -> Result<Cupti> {
        no_cuda()
    }
}

/// Any operation: no device asks it.
pub(crate) trait CudaOperation {
    fn accept(&self, submitted: Submitted, cuda: &CudaDevice) -> Result<()> {
        match cuda.kernels.0 {}
    }

    fn scratch_bytes(&self, cuda: &CudaDevice) -> usize {
        match cuda.kernels.0 {}
    }
}

impl<T> CudaOperation for T {}

pub(crate) fn open(options: CudaOptions) -> Result<CudaDevice> {
    no_cuda()
}

pub(crate) fn gpu_of(address: u64) -> Option<usize> {
    None
}
