//! A GPU and everything that operations are launched with.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use super::KernelFile;
#[cfg(feature = "trainer-ops")]
use super::cublaslt::CublasLt;
#[cfg(feature = "trainer-ops")]
use super::cudnn::Cudnn;
use super::driver::{self, DeviceMemory, Gpu, RawEvent};
use super::graph::SetCondition;
use super::states::StateStream;
use super::{Counters, CudaOptions, CustomKernels, Kernels, ProgressMarks};
use crate::{Element, Error, Progress, Result, Tensor};

/// A GPU and everything that operations are launched with. Fields drop in order: the context last.
pub(crate) struct CudaDevice {
    /// `None` if cuDNN is missing or refuses the GPU. Attention then runs on our own kernels.
    #[cfg(feature = "trainer-ops")]
    pub(crate) cudnn: Option<Cudnn>,
    #[cfg(feature = "trainer-ops")]
    pub(crate) cublaslt: CublasLt,
    pub(crate) kernels: Kernels,
    pub(super) custom_kernels: CustomKernels,
    /// The kernel of `when`, loaded at the first need.
    pub(super) condition: OnceCell<SetCondition>,
    /// `None` until somebody watches.
    pub(super) marks: Option<ProgressMarks>,
    /// Made once a state is put aside or compared.
    pub(super) states: OnceCell<StateStream>,
    pub(crate) gpu: Gpu,
    pub(crate) counters: Rc<RefCell<Counters>>,
}

impl CudaDevice {
    /// Opens a GPU and loads the kernels of `files` that are always loaded.
    ///
    /// # Errors
    /// No such GPU, or one that is too old; a missing library, unless it is cuDNN.
    pub(crate) fn open(options: CudaOptions, files: Vec<KernelFile>) -> Result<CudaDevice> {
        let gpu = Gpu::open(options.ordinal)?;
        let kernels = Kernels::load(files, &gpu.properties)?;
        #[cfg(feature = "trainer-ops")]
        // cuBLASLt comes first: cuDNN ends the process if it cannot find cuBLASLt.
        let cublaslt = CublasLt::open(&options, &gpu.properties)?;
        #[cfg(feature = "trainer-ops")]
        let cudnn = Cudnn::open(&options)
            .inspect_err(|error| tracing::warn!("without cuDNN attention runs on our own, slower kernels: {error}"))
            .ok();
        Ok(CudaDevice {
            #[cfg(feature = "trainer-ops")]
            cudnn,
            #[cfg(feature = "trainer-ops")]
            cublaslt,
            kernels,
            custom_kernels: CustomKernels::default(),
            condition: OnceCell::new(),
            marks: None,
            states: OnceCell::new(),
            gpu,
            counters: Rc::default(),
        })
    }

    /// Lets kernels write progress marks to the memory of `progress`.
    ///
    /// # Errors
    /// The driver cannot map that memory.
    pub(crate) fn watch(&mut self, progress: Progress) -> Result<()> {
        self.marks = Some(ProgressMarks::new(progress)?);
        Ok(())
    }

    /// Loads the kernel of `when`, unless it is loaded. That must come before a capture.
    ///
    /// # Errors
    /// As [`SetCondition::load`].
    pub(super) fn load_condition(&self) -> Result<()> {
        if self.condition.get().is_none() {
            // It was empty, and a device belongs to one thread.
            let _ = self.condition.set(SetCondition::load(&self.gpu.properties)?);
        }
        Ok(())
    }

    /// Memory for an area.
    pub(crate) fn allocate(&self, name: &str, bytes: usize) -> Result<DeviceMemory> {
        self.counters.borrow_mut().allocations += 1;
        DeviceMemory::new(bytes)?.ok_or_else(|| self.out_of_memory(name, bytes))
    }

    pub(super) fn out_of_memory(&self, name: &str, bytes: usize) -> Error {
        let available = match self.gpu.memory() {
            Ok((free, total)) => format!("the GPU has {free} of {total} bytes free"),
            Err(error) => error.to_string(),
        };
        Error::OutOfMemory { name: name.into(), bytes, available }
    }

    /// Copies host data to a tensor and waits.
    pub(crate) fn upload<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.counters.borrow_mut().blocking_copies += 1;
        driver::copy_to_device(tensor.address, data)
    }

    /// Sets every byte of a tensor to 0 and waits.
    pub(crate) fn zero(&self, tensor: &Tensor) -> Result<()> {
        driver::zero(tensor.address, tensor.bytes())
    }

    /// Copies a tensor to the host and waits.
    pub(crate) fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>> {
        self.counters.borrow_mut().blocking_copies += 1;
        driver::copy_to_host(tensor.address, tensor.elements())
    }

    /// Waits for an event. Counts the wait unless the event has passed already.
    pub(super) fn wait_for(&self, event: &RawEvent) -> Result<()> {
        if event.passed()? {
            return Ok(());
        }
        self.counters.borrow_mut().staging_waits += 1;
        event.synchronize()
    }
}
