//! An operation as a GPU runs it.

use crate::Result;
use crate::cuda::{CudaDevice, KernelFile, KernelOperation, KernelSet, Queue, accept_fp8};
use crate::submitted::Submitted;

/// An operation as a GPU runs it. Most are a [`KernelOperation`].
pub(crate) trait CudaOperation {
    /// The files of all kernels of ours that the operation may need.
    fn files() -> &'static [KernelFile]
    where
        Self: Sized;

    /// Launches a checked operation on the queue's stream, or records it while that captures.
    ///
    /// # Errors
    /// An error of a library or of the driver.
    fn launch(&self, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()>;

    /// Bytes of scratch memory that the operation needs while it runs. Known before anything is allocated.
    fn scratch_bytes(&self, _cuda: &CudaDevice) -> usize {
        0
    }

    /// Fails unless a checked operation can be submitted to a stream.
    ///
    /// # Errors
    /// A custom operation without a CUDA side, or one that is to be captured before its kernel is loaded; an 8-bit
    /// floating type on a GPU that has none; more experts than kernels take.
    fn accept(&self, _submitted: Submitted, _cuda: &CudaDevice) -> Result<()> {
        Ok(())
    }

    /// Lets libraries choose how to do an operation, and loads the kernels that are not always loaded.
    ///
    /// # Errors
    /// An operation that a library cannot do.
    fn prepare(&self, _cuda: &CudaDevice) -> Result<()> {
        Ok(())
    }
}

impl<K: KernelOperation> CudaOperation for K {
    fn files() -> &'static [KernelFile] {
        K::FILES
    }

    fn launch(&self, _cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        KernelOperation::launch(self, queue)
    }

    fn scratch_bytes(&self, cuda: &CudaDevice) -> usize {
        KernelOperation::scratch_bytes(self, &cuda.gpu.properties)
    }

    fn accept(&self, submitted: Submitted, cuda: &CudaDevice) -> Result<()> {
        let gpu = &cuda.gpu.properties;
        if K::FILES.iter().any(|file| file.set == KernelSet::Fp8) {
            accept_fp8(self.name(), gpu)?;
        }
        self.fits(gpu)?;
        // Kernels that were not prepared are loaded now, unless the stream captures.
        if submitted == Submitted::ToCapture { Ok(()) } else { self.prepare(cuda) }
    }

    fn prepare(&self, cuda: &CudaDevice) -> Result<()> {
        K::FILES.iter().try_for_each(|file| cuda.kernels.load_set(file.set))
    }
}
