//! Device memory put aside in the host's memory, to go back to a state; digests of it, to compare two states.

use super::Device;
use crate::digest::{digest, digest_part};
use crate::dispatch::DeviceBackend;
use crate::host::view;
use crate::host_memory::HostBlock;
use crate::{Result, Tensor};

/// Bytes of device memory, put aside in the host's memory: page-locked memory for a GPU.
pub struct Snapshot {
    /// Tensors, and where each begins in the block.
    parts: Vec<(Tensor, usize)>,
    block: HostBlock,
}

/// Copies begin at multiples of so many bytes.
const ALIGNED: usize = 256;

/// How many bytes are read at once to be looked at.
const CHUNK: usize = 64 << 20;

impl Device {
    /// Waits for all submitted work, then puts the bytes of `tensors` aside: also bytes that nothing has written. The
    /// memory of what `snapshot` held before is used again if it is large enough.
    ///
    /// # Errors
    /// As [`Device::synchronize`]; freed memory; the system cannot lock that much.
    pub fn snapshot(&self, snapshot: &mut Snapshot, tensors: impl IntoIterator<Item = Tensor>) -> Result<()> {
        self.synchronize()?;
        let mut end = 0;
        let place = |tensor: Tensor| {
            let at = end;
            end += tensor.bytes().next_multiple_of(ALIGNED);
            self.may_be_read(&tensor).map(|()| (tensor, at))
        };
        snapshot.parts = tensors.into_iter().map(place).collect::<Result<_>>()?;
        let core = self.core();
        if core.dry {
            return Ok(());
        }
        let is_large_enough = end <= snapshot.block.bytes();
        match &core.backend {
            DeviceBackend::Host(_) => {
                if !is_large_enough {
                    snapshot.block = HostBlock::ordinary(end);
                }
                let bytes = snapshot.block.slice_mut::<u8>(end);
                for (tensor, at) in &snapshot.parts {
                    bytes[*at..*at + tensor.bytes()].copy_from_slice(view::read::<u8>(&tensor.as_bytes()));
                }
                Ok(())
            }
            DeviceBackend::Cuda(cuda) => {
                if !is_large_enough {
                    // The old block goes before there is a new one.
                    snapshot.block = HostBlock::ordinary(0);
                    snapshot.block = HostBlock::locked(end)?;
                }
                cuda.put_aside(&snapshot.parts, &snapshot.block)
            }
        }
    }

    /// Waits for all submitted work, then writes a snapshot back to its tensors.
    ///
    /// # Errors
    /// As [`Device::snapshot`].
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        self.synchronize()?;
        let core = self.core();
        if core.dry {
            return Ok(());
        }
        snapshot.parts.iter().try_for_each(|(tensor, _)| core.check_live("restore", tensor))?;
        match &core.backend {
            DeviceBackend::Host(_) => {
                let bytes = snapshot.block.slice::<u8>(snapshot.block.bytes());
                for (tensor, at) in &snapshot.parts {
                    view::write::<u8>(&tensor.as_bytes()).copy_from_slice(&bytes[*at..*at + tensor.bytes()]);
                }
                Ok(())
            }
            DeviceBackend::Cuda(cuda) => cuda.bring_back(&snapshot.parts, &snapshot.block),
        }
    }

    /// A digest of each tensor's bytes, computed where they are. Tensors that differ in only one word of 8 bytes never have
    /// the same digest. It waits for nothing: the work that writes them must have ended.
    ///
    /// # Errors
    /// As [`Device::snapshot`].
    pub fn digests(&self, tensors: &[Tensor]) -> Result<Vec<u64>> {
        tensors.iter().try_for_each(|tensor| self.may_be_read(tensor))?;
        let core = self.core();
        if core.dry {
            return Ok(vec![0; tensors.len()]);
        }
        match &core.backend {
            DeviceBackend::Host(_) => {
                Ok(tensors.iter().map(|tensor| digest(view::read::<u8>(&tensor.as_bytes()))).collect())
            }
            DeviceBackend::Cuda(cuda) => {
                let (on_host, here): (Vec<usize>, Vec<usize>) =
                    (0..tensors.len()).partition(|at| core.is_on_host(&tensors[*at]));
                let mut digests = vec![0; tensors.len()];
                let tensors_here: Vec<Tensor> = here.iter().map(|at| tensors[*at]).collect();
                here.iter().zip(cuda.digests(&tensors_here)?).for_each(|(at, digest)| digests[*at] = digest);
                for at in on_host {
                    let all = tensors[at].as_bytes();
                    for start in (0..all.elements()).step_by(CHUNK) {
                        let part = cuda.download(&all.view(start, [CHUNK.min(all.elements() - start)]))?;
                        digests[at] = u64::wrapping_add(digests[at], digest_part(&part, (start / 8) as u64));
                    }
                }
                Ok(digests)
            }
        }
    }

    /// Shows `look` the bytes of a tensor, a piece at a time. It waits for nothing: the work that writes them must have ended.
    ///
    /// # Errors
    /// As [`Device::snapshot`].
    pub fn look(&self, tensor: &Tensor, mut look: impl FnMut(&[u8])) -> Result<()> {
        let all = tensor.as_bytes();
        for start in (0..all.elements()).step_by(CHUNK) {
            look(&self.bytes(&all.view(start, [CHUNK.min(all.elements() - start)]))?);
        }
        Ok(())
    }

    /// The bytes of a tensor, whoever wrote them.
    fn bytes(&self, tensor: &Tensor) -> Result<Vec<u8>> {
        self.may_be_read(tensor)?;
        let core = self.core();
        if core.dry {
            return Ok(vec![0; tensor.bytes()]);
        }
        match &core.backend {
            DeviceBackend::Host(_) => Ok(view::read::<u8>(&tensor.as_bytes()).to_vec()),
            DeviceBackend::Cuda(cuda) => cuda.download(&tensor.as_bytes()),
        }
    }

    /// # Errors
    /// The device records; freed memory.
    fn may_be_read(&self, tensor: &Tensor) -> Result<()> {
        let core = self.core_for(|| format!("Device::look at {} bytes", tensor.bytes()))?;
        core.refuse_while_recording(|| format!("Device::look at `{}`", core.buffer_name(tensor.buffer)))?;
        if core.dry { Ok(()) } else { core.check_live("snapshot", tensor) }
    }
}

impl Default for Snapshot {
    /// Of nothing.
    fn default() -> Self {
        Snapshot { parts: Vec::new(), block: HostBlock::ordinary(0) }
    }
}
