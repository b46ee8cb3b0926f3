//! The CUDA device: the same operations on a GPU, through cuBLASLt, cuDNN and kernels of our own.

mod causes;
mod compile;
mod cublaslt;
mod cudnn;
mod cupti;
mod error;
mod gpu;
mod kernels;
mod lane;
mod libraries;
mod marks;
mod memory;
mod ops;
mod queue;
mod rewrite;
mod stored;
mod timing;
mod versions;

pub use compile::{SOURCES, compile};
pub(crate) use cublaslt::CublasLt;
pub(crate) use cudnn::Cudnn;
pub(crate) use cupti::{Cupti, CuptiNote};
pub(crate) use gpu::Gpu;
pub use gpu::{GpuProperties, gpu_count};
pub(crate) use kernels::{Arg, Grid, Kernels};
pub(crate) use lane::CudaLane;
pub(crate) use marks::Marks;
pub(crate) use memory::{DeviceBlock, PinnedBlock};
pub(crate) use queue::{Arriving, RawEvent, RawGraph, RawStream};
pub use versions::library_versions;

use std::cell::RefCell;
use std::rc::Rc;

use crate::{Element, Error, Op, Progress, Result, Tensor};

/// Choices about a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Which of the visible GPUs.
    pub ordinal: usize,
    /// The same bits from run to run: no timing of algorithms, no atomics.
    pub deterministic: bool,
    /// Matrix products of f32 tensors in TF32, 10 bits of mantissa.
    pub tf32: bool,
    /// Check every operation and launch for races, reads of overwritten or freed memory, and reads of nothing.
    pub check: bool,
}

/// What a steady step must not do, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Device or pinned memory allocated.
    pub allocations: u64,
    /// The host waited for a stream or the whole device.
    pub synchronizations: u64,
    /// Copies the host waited for.
    pub blocking_copies: u64,
    /// The host waited for numbers it had asked for, such as a step's metrics.
    pub metric_waits: u64,
    /// The host waited until pinned memory could be filled again.
    pub staging_waits: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Operations submitted one by one, to run or to be captured; none of a graph's launch.
    pub eager_operations: u64,
}

/// A GPU and everything that operations are launched with. Fields drop in order: the context last.
pub(crate) struct Cuda {
    /// Nothing where it is missing or refuses: then attention runs on our own kernels.
    pub(crate) cudnn: Option<Cudnn>,
    pub(crate) cublaslt: CublasLt,
    pub(crate) kernels: Kernels,
    marks: Option<Marks>,
    pub(crate) gpu: Gpu,
    pub(crate) counters: Rc<RefCell<Counters>>,
}

impl Cuda {
    /// Opens a GPU and loads the kernels.
    ///
    /// # Errors
    /// No such GPU, or one that is too old; a missing library, unless it is cuDNN.
    pub(crate) fn open(options: CudaOptions) -> Result<Cuda> {
        let gpu = Gpu::open(options.ordinal)?;
        let kernels = Kernels::load(&gpu.properties)?;
        // In this order: cuDNN ends the process where it cannot find cuBLASLt.
        let cublaslt = CublasLt::open(&options, &gpu.properties)?;
        let cudnn = Cudnn::open(&options)
            .inspect_err(|error| tracing::warn!("without cuDNN attention runs on our own, slower kernels: {error}"))
            .ok();
        Ok(Cuda { cudnn, cublaslt, kernels, marks: None, gpu, counters: Rc::default() })
    }

    /// Has kernels leave marks where `progress` is read.
    ///
    /// # Errors
    /// When the driver cannot map its memory.
    pub(crate) fn watch(&mut self, progress: Progress) -> Result<()> {
        self.marks = Some(Marks::new(progress)?);
        Ok(())
    }

    /// Has libraries choose how to do an operation, before memory is planned.
    pub(crate) fn prepare(&self, op: &Op) -> Result<()> {
        ops::prepare(op, self)
    }

    /// Bytes of scratch memory an operation needs while it runs.
    pub(crate) fn scratch_bytes(&self, op: &Op) -> usize {
        ops::scratch_bytes(op, self)
    }

    /// Launches an operation on the queue's stream, or records it while that captures.
    pub(crate) fn run(&self, op: &Op, queue: &Queue<'_>) -> Result<()> {
        self.counters.borrow_mut().eager_operations += 1;
        ops::run(op, queue)
    }

    /// Memory for an area.
    pub(crate) fn allocate(&self, name: &str, bytes: usize) -> Result<DeviceBlock> {
        self.counters.borrow_mut().allocations += 1;
        DeviceBlock::new(bytes)?.ok_or_else(|| self.out_of_memory(name, bytes))
    }

    fn out_of_memory(&self, name: &str, bytes: usize) -> Error {
        let available = match self.gpu.memory() {
            Ok((free, total)) => format!("the GPU has {free} of {total} bytes free"),
            Err(error) => error.to_string(),
        };
        Error::OutOfMemory { name: name.into(), bytes, available }
    }

    /// Blocks until everything submitted is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.counters.borrow_mut().synchronizations += 1;
        self.gpu.synchronize()
    }

    /// Copies host data to a tensor and waits.
    pub(crate) fn upload<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.counters.borrow_mut().blocking_copies += 1;
        memory::copy_to_device(tensor.address, data)
    }

    /// Sets every byte of a tensor to 0 and waits.
    pub(crate) fn zero(&self, tensor: &Tensor) -> Result<()> {
        memory::zero(tensor.address, tensor.bytes())
    }

    /// Copies a tensor to the host and waits.
    pub(crate) fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>> {
        self.counters.borrow_mut().blocking_copies += 1;
        memory::copy_to_host(tensor.address, tensor.elements())
    }

    /// Waits for an event, and counts if that took waiting.
    fn wait_for(&self, event: &RawEvent) -> Result<()> {
        if event.passed()? {
            return Ok(());
        }
        self.counters.borrow_mut().staging_waits += 1;
        event.synchronize()
    }
}

/// A CUDA stream of the device's, for libraries that enqueue work on it themselves.
#[derive(Clone, Copy, Debug)]
pub struct StreamHandle(pub *mut std::ffi::c_void);

/// Where an operation is launched: the stream, and scratch memory that belongs to that stream alone.
pub(crate) struct Queue<'a> {
    pub(crate) cuda: &'a Cuda,
    pub(crate) stream: &'a RawStream,
    /// Address of at least [`scratch_bytes`] of the operation.
    pub(crate) scratch: u64,
}

impl Queue<'_> {
    /// Launches one of our kernels.
    pub(crate) fn launch(&self, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        self.cuda.kernels.launch(self.stream, kernel, grid, arguments)
    }

    /// Launches one of our kernels that takes a struct by value.
    pub(crate) fn launch_block<T: bytemuck::Pod>(&self, kernel: &str, grid: Grid, block: &T) -> Result<()> {
        self.cuda.kernels.launch_block(self.stream, kernel, grid, block)
    }

    /// Streaming multiprocessors, for grids that fill the GPU.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.cuda.gpu.properties.multiprocessors as usize
    }
}
