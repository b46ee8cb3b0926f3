//! Device memory put aside in the host's memory: to go back to a state, and to compare two states.

use super::Device;
use crate::backend::DeviceBackend;
use crate::host::view;
use crate::{Result, Tensor};

/// Bytes of device memory, put aside in the host's memory.
#[derive(Default)]
pub struct Snapshot {
    parts: Vec<(Tensor, Vec<u8>)>,
}

/// How many bytes are read at once to be looked at.
const CHUNK: usize = 64 << 20;

impl Device {
    /// Waits for all submitted work, then puts the bytes of these tensors aside: also bytes that nothing has written.
    ///
    /// # Errors
    /// As [`Device::synchronize`]; freed memory.
    pub fn snapshot(&self, tensors: impl IntoIterator<Item = Tensor>) -> Result<Snapshot> {
        self.synchronize()?;
        let put_aside = |tensor: Tensor| Ok((tensor, self.bytes(&tensor)?));
        Ok(Snapshot { parts: tensors.into_iter().map(put_aside).collect::<Result<_>>()? })
    }

    /// Waits for all submitted work, then writes a snapshot back to its tensors.
    ///
    /// # Errors
    /// As [`Device::snapshot`].
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        self.synchronize()?;
        let core = self.core();
        for (tensor, bytes) in snapshot.parts.iter().filter(|_| !core.dry) {
            core.check_live("restore", tensor)?;
            match &core.backend {
                DeviceBackend::Host(_) => view::write::<u8>(&tensor.as_bytes()).copy_from_slice(bytes),
                DeviceBackend::Cuda(cuda) => cuda.upload(&tensor.as_bytes(), bytes)?,
            }
        }
        Ok(())
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
        let core = self.core_for(|| format!("Device::look at {} bytes", tensor.bytes()))?;
        core.refuse_while_recording(|| format!("Device::look at `{}`", core.buffer_name(tensor.buffer)))?;
        if core.dry {
            return Ok(vec![0; tensor.bytes()]);
        }
        core.check_live("snapshot", tensor)?;
        match &core.backend {
            DeviceBackend::Host(_) => Ok(view::read::<u8>(&tensor.as_bytes()).to_vec()),
            DeviceBackend::Cuda(cuda) => cuda.download(&tensor.as_bytes()),
        }
    }
}

impl Snapshot {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}
