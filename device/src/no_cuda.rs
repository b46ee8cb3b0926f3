//! The stand-in for the CUDA device in a build without the feature `cuda`. Its types have no values, so the code that
//! uses them compiles and is never reached. The words for work on a GPU are there.

#![allow(dead_code, unused_variables, reason = "nothing can call it")]

use std::any::Any;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use crate::array::ArrayColumns;
use crate::host_block::HostBlock;
use crate::priority::Priority;
use crate::submitted::Submitted;
use crate::timeline::Span;
use crate::{CaptureMode, Element, Error, HostArray, Op, Progress, Result, Tensor};

pub use crate::gpu::*;

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

impl CudaDevice {
    pub(crate) fn allocate(&self, name: &str, bytes: usize) -> Result<DeviceMemory> {
        match self.kernels.0 {}
    }

    pub(crate) fn watch(&mut self, progress: Progress) -> Result<()> {
        match self.kernels.0 {}
    }

    pub(crate) fn upload<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        match self.kernels.0 {}
    }

    pub(crate) fn zero(&self, tensor: &Tensor) -> Result<()> {
        match self.kernels.0 {}
    }

    pub(crate) fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>> {
        match self.kernels.0 {}
    }

    pub(crate) fn put_aside(&self, parts: &[(Tensor, usize)], block: &HostBlock) -> Result<()> {
        match self.kernels.0 {}
    }

    pub(crate) fn bring_back(&self, parts: &[(Tensor, usize)], block: &HostBlock) -> Result<()> {
        match self.kernels.0 {}
    }

    pub(crate) fn digests(&self, tensors: &[Tensor]) -> Result<Vec<u64>> {
        match self.kernels.0 {}
    }
}

impl Gpu {
    pub(crate) fn memory(&self) -> Result<(usize, usize)> {
        match self.context.0 {}
    }
}

#[cfg(feature = "trainer-ops")]
impl CublasLt {
    pub(crate) fn export(&self) -> String {
        match self.0 {}
    }

    pub(crate) fn import(&self, choices: &str) -> Result<()> {
        match self.0 {}
    }
}

impl PrimaryContext {
    pub(crate) fn enter(&self) -> Result<()> {
        match self.0 {}
    }
}

impl PageLocked {
    pub(crate) fn new(bytes: usize) -> Result<PageLocked> {
        no_cuda()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        match self.0 {}
    }
}

impl DeviceMemory {
    pub(crate) fn address(&self) -> u64 {
        match self.0 {}
    }
}

impl CudaStream {
    pub(crate) fn new(priority: Priority) -> CudaStream {
        unreachable!("a stream is of its device's kind")
    }

    pub(crate) fn adopt(&mut self, handle: StreamHandle, owner: Box<dyn Any>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn raw(&self) -> Result<Rc<RawStream>> {
        match self.0 {}
    }

    pub(crate) fn made(&self) -> Option<Rc<RawStream>> {
        match self.0 {}
    }

    pub(crate) fn prepare(&mut self, op: &Op, cuda: &CudaDevice) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn scratch_bytes(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn free_scratch(&mut self) {
        match self.0 {}
    }

    pub(crate) fn provide_scratch(&mut self, cuda: &CudaDevice) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn run(&mut self, op: &Op, cuda: &CudaDevice, capturing: bool) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn record(&self, event: Rc<RawEvent>) -> Result<Rc<RawEvent>> {
        match self.0 {}
    }

    pub(crate) fn copy_out(&self, part: &Tensor, block: &HostBlock, at: usize) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn mark(&self) -> Result<RawEvent> {
        match self.0 {}
    }

    pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T], cuda: &CudaDevice) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn send<T: Element>(
        &mut self,
        tensor: &Tensor,
        data: &HostArray<T>,
        columns: ArrayColumns,
        cuda: &CudaDevice,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn read(&mut self, tensor: &Tensor, cuda: &CudaDevice) -> Result<PendingCopy> {
        match self.0 {}
    }
}

impl RawStream {
    pub(crate) fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn wait(&self, event: &RawEvent) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn begin_capture(&self, mode: CaptureMode) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn abandon_capture(&self) {
        match self.0 {}
    }
}

impl RawEvent {
    pub(crate) fn new() -> Result<RawEvent> {
        no_cuda()
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn await_asleep(&self) -> Result<()> {
        match self.0 {}
    }
}

impl RawGraph {
    pub(crate) fn end_capture(stream: &RawStream, kernels: &Kernels) -> Result<RawGraph> {
        match kernels.0 {}
    }

    pub(crate) fn add_to_capture(&self, stream: &RawStream) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn launch(&self, stream: &RawStream) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn driver_bytes(&self) -> i64 {
        match self.0 {}
    }

    pub(crate) fn dot(&self) -> Result<String> {
        match self.0 {}
    }
}

impl PendingCopy {
    pub(crate) fn wait<T: Element>(self) -> Result<Vec<T>> {
        match self.0 {}
    }
}

impl Cupti {
    pub(crate) fn open() -> Result<Cupti> {
        no_cuda()
    }

    pub(crate) fn is_running(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn submit(
        &self,
        label: &str,
        graph: Option<&str>,
        details: impl FnOnce() -> Vec<(&'static str, String)>,
        capturing: bool,
    ) -> Option<CuptiNote> {
        match self.0 {}
    }

    pub(crate) fn begin(&self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn end<'a>(&self, streams: impl Iterator<Item = (Rc<RawStream>, &'a str)>) -> Result<Vec<Span>> {
        match self.0 {}
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

#[cfg(feature = "trainer-ops")]
pub(crate) fn norm_parts(input: &Tensor, sums: crate::ops::RowSums, multiprocessors: usize) -> usize {
    unreachable!("it is asked of a GPU")
}

pub(crate) fn gpu_of(address: u64) -> Option<usize> {
    None
}
