//! Copies between host and device that block: for set-up, not for steps.

use super::{Core, Device};
use crate::dispatch::DeviceBackend;
use crate::host::view;
use crate::host_memory::HostBlock;
use crate::sync_debug::CostlyCall;
use crate::{Element, Error, Result, Staging, Tensor};

/// So many bytes of the host's memory are set to 0 at once.
const CHUNK: usize = 64 << 20;

impl Device {
    /// Waits for everything submitted before, then writes host data to a tensor: for set-up, not for steps.
    ///
    /// # Errors
    /// [`Error::Recording`]; [`Synchronization`](crate::CaptureRule::Synchronization) while a stream captures; a type or size that differs.
    pub fn upload<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.check_image::<T>("upload", tensor, data.len())?;
        self.blocks("upload", tensor)?;
        let mut core = self.core();
        if core.dry {
            return Ok(());
        }
        core.check_live("upload", tensor)?;
        if let Some(checker) = &mut core.checker {
            checker.host_write(tensor);
        }
        match &core.backend {
            DeviceBackend::Host(_) => view::write::<T>(tensor).copy_from_slice(data),
            DeviceBackend::Cuda(cuda) => cuda.upload(tensor, data)?,
        }
        Ok(())
    }

    /// Waits for everything submitted before, then sets every byte of a tensor to 0: for set-up, not for steps.
    ///
    /// # Errors
    /// [`Error::Recording`]; [`Synchronization`](crate::CaptureRule::Synchronization) while a stream captures; freed memory.
    pub fn zero(&self, tensor: &Tensor) -> Result<()> {
        self.blocks("zero", tensor)?;
        let mut core = self.core();
        if core.dry {
            return Ok(());
        }
        core.check_live("zero", tensor)?;
        if let Some(checker) = &mut core.checker {
            checker.host_write(tensor);
        }
        match &core.backend {
            DeviceBackend::Host(_) => view::zero(tensor),
            DeviceBackend::Cuda(cuda) if core.is_on_host(tensor) => {
                let (all, zeros) = (tensor.as_bytes(), vec![0_u8; CHUNK.min(tensor.bytes())]);
                for start in (0..all.elements()).step_by(CHUNK) {
                    let count = CHUNK.min(all.elements() - start);
                    cuda.upload(&all.view(start, [count]), &zeros[..count])?;
                }
            }
            DeviceBackend::Cuda(cuda) => cuda.zero(tensor)?,
        }
        Ok(())
    }

    /// Waits for everything submitted before, then reads a tensor back: for set-up, tests and checkpoints, not for
    /// steps.
    ///
    /// # Errors
    /// [`Error::Recording`]; [`Synchronization`](crate::CaptureRule::Synchronization) while a stream captures; a type that differs; freed
    /// memory.
    pub fn download<T: Element>(&self, tensor: &Tensor) -> Result<Vec<T>> {
        self.check_image::<T>("download", tensor, tensor.elements())?;
        self.blocks("download", tensor)?;
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
            DeviceBackend::Host(_) => Ok(view::read::<T>(tensor).to_vec()),
            DeviceBackend::Cuda(cuda) => cuda.download(tensor),
        }
    }

    /// Notes a call that waits for a tensor, and waits.
    ///
    /// # Errors
    /// [`Error::Within`]; [`Error::Recording`]; [`Error::Hinders`]; as [`Device::synchronize`].
    fn blocks(&self, call: &str, tensor: &Tensor) -> Result<()> {
        let core = self.core_for(|| format!("Device::{call} of a tensor {:?} of {}", tensor.shape, tensor.dtype))?;
        let named = |core: &Core| format!("Device::{call} of `{}`", core.buffer_name(tensor.buffer));
        core.refuse_while_recording(|| named(&core))?;
        core.hinders(CostlyCall::Waits, || named(&core))?;
        drop(core);
        self.finish(|core| format!("{} waits for all work of the device", named(core)))
    }

    /// Page-locked memory for host arrays of the given sizes in bytes. Empty on the host device.
    ///
    /// # Errors
    /// [`Error::Recording`]; the system cannot lock that much.
    pub fn staging(&self, bytes: impl IntoIterator<Item = usize>) -> Result<Staging> {
        let call = || "Device::staging".into();
        self.core_for(call)?.refuse_while_recording(call)?;
        self.core().hinders(CostlyCall::Allocates, call)?;
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(Staging::default()),
            DeviceBackend::Cuda(cuda) => {
                let blocks: Vec<HostBlock> = bytes.into_iter().map(HostBlock::locked).collect::<Result<_>>()?;
                cuda.counters.borrow_mut().allocations += blocks.len() as u64;
                Ok(Staging::new(blocks, cuda.gpu.context.clone()))
            }
        }
    }

    pub(crate) fn check_image<T: Element>(&self, what: &'static str, tensor: &Tensor, elements: usize) -> Result<()> {
        if tensor.dtype != T::DTYPE || tensor.elements() != elements {
            let problem = format!("{} {} for a tensor {:?} of {}", elements, T::DTYPE, tensor.shape, tensor.dtype);
            return Err(Error::operation(what, problem));
        }
        Ok(())
    }
}
