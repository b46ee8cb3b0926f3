//! A GPU's state: copied to page-locked memory and back, and compared by digests.

use super::driver::{DeviceMemory, RawStream};
use super::{CudaDevice, driver};
use crate::cuda::{Arg, Grid, KernelFile, kernel_file};
use crate::host_memory::HostBlock;
use crate::priority::Priority;
use crate::{Result, Tensor};

/// The file of the kernel of digests.
pub(super) const DIGEST_FILE: KernelFile = kernel_file!("digest.cu");
/// Digests that are read at once.
const DIGESTS: usize = 1024;
/// Threads of a block, and bytes that a block reads in one turn of its loop.
const THREADS: usize = 256;
const BLOCK_BYTES: usize = 8 * THREADS;
/// More blocks than a GPU runs at once gain nothing.
const MOST_BLOCKS: usize = 4096;

/// The stream that copies states, and memory for digests. They stay: to free memory would wait for all streams, and some
/// of these may wait for other ranks.
pub(super) struct StateStream {
    stream: RawStream,
    digests: DeviceMemory,
}

impl CudaDevice {
    /// Copies tensors to a block of page-locked memory, each from its byte there on, and waits.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn put_aside(&self, parts: &[(Tensor, usize)], block: &HostBlock) -> Result<()> {
        self.counters.borrow_mut().blocking_copies += 1;
        let stream = &self.states()?.stream;
        parts.iter().try_for_each(|(tensor, at)| stream.copy_out((block, *at), tensor.address, tensor.bytes()))?;
        stream.synchronize()
    }

    /// Copies tensors back from the block of [`CudaDevice::put_aside`], and waits.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn bring_back(&self, parts: &[(Tensor, usize)], block: &HostBlock) -> Result<()> {
        self.counters.borrow_mut().blocking_copies += 1;
        let stream = &self.states()?.stream;
        parts.iter().try_for_each(|(tensor, at)| stream.copy_in(tensor.address, (block, *at), tensor.bytes()))?;
        stream.synchronize()
    }

    /// A digest of each tensor's bytes. The work that writes them must have ended.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn digests(&self, tensors: &[Tensor]) -> Result<Vec<u64>> {
        let StateStream { stream, digests } = self.states()?;
        let mut all = Vec::with_capacity(tensors.len());
        for tensors in tensors.chunks(DIGESTS) {
            stream.set_bytes(digests.address(), 0, 8 * tensors.len())?;
            for (at, tensor) in tensors.iter().enumerate() {
                let bytes = tensor.bytes();
                let grid = Grid::line(bytes.div_ceil(BLOCK_BYTES).clamp(1, MOST_BLOCKS), THREADS);
                let digest = Arg::Pointer(digests.address() + 8 * at as u64);
                self.kernels.launch(stream, "digest", grid, &[(*tensor).into(), Arg::U64(bytes as u64), digest])?;
            }
            stream.synchronize()?;
            let bytes = driver::copy_to_host::<u8>(digests.address(), 8 * tensors.len())?;
            all.extend(bytes.as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes));
        }
        Ok(all)
    }

    fn states(&self) -> Result<&StateStream> {
        if self.states.get().is_none() {
            let digests = self.allocate("digests", 8 * DIGESTS)?;
            // It was empty, and a device belongs to one thread.
            let _ = self.states.set(StateStream { stream: RawStream::new(Priority::Compute)?, digests });
        }
        Ok(self.states.get().unwrap_or_else(|| unreachable!("made above")))
    }
}
