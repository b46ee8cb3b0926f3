//! Areas over memory that other code owns.

#![allow(unsafe_code)]

use std::any::Any;

use super::memory::{ALIGNMENT, AreaInfo, AreaMemory, Home};
use super::{Area, Core, Device};
use crate::cuda::gpu_of;
use crate::dispatch::DeviceBackend;
use crate::tensor::VIRTUAL;
use crate::{Error, Result};

/// The alignment of adopted memory on the host device: enough for every [`Element`](crate::Element), and that of an
/// ordinary allocation.
const HOST_ALIGNMENT: usize = 16;

impl Device {
    /// An area over memory that other code owns, such as a tensor of another crate. Tensors in it are used like all
    /// others, with the values that the memory has. This crate never frees the memory. It drops `owner` when the area is
    /// dropped and all work that was submitted is done, and then the owner may free it.
    ///
    /// On a GPU `address` is one of its memory, and begins at a multiple of 256, as every allocation of CUDA does. On the
    /// host device it is a pointer to memory of this process (`pointer.expose_provenance() as u64`), and begins at a
    /// multiple of 16.
    ///
    /// Other code that uses the memory has to be ordered with this device's work: it waits for
    /// [`Device::synchronize`], or works within a custom operation. The checker knows of no other work.
    ///
    /// # Safety
    /// All `bytes` bytes from `address` on are allocated, and stay so at this address until `owner` is dropped. While an
    /// operation or a copy of this device uses them, no other code writes to them, and none reads what is being written.
    /// On the host device they are initialised, may be written to, and Rust has no other reference to them while an
    /// operation or copy runs.
    ///
    /// # Errors
    /// An address that is not aligned, is not this device's, or lies in an area that the device has;
    /// [`Error::Recording`].
    pub unsafe fn adopt(&self, name: &str, address: u64, bytes: usize, owner: impl Any) -> Result<Area> {
        let call = || format!("Device::adopt of `{name}`, {bytes} bytes,");
        let mut core = self.core_for(call)?;
        core.refuse_while_recording(call)?;
        core.check_adoptable(address, bytes).map_err(|problem| {
            Error::operation("adopt", format!("`{name}`, {bytes} bytes at {address:#x}, {problem}"))
        })?;
        let range = address..address + bytes as u64;
        let memory = AreaMemory::Adopted(Box::new(owner));
        core.areas.insert(range.start, AreaInfo { end: range.end, home: Home::Device, memory });
        if let Some(checker) = &mut core.checker {
            checker.adopt(range);
        }
        Ok(Area { device: self.clone(), start: address, bytes })
    }
}

impl Core {
    /// # Errors
    /// The reason why the memory cannot be an area.
    fn check_adoptable(&self, address: u64, bytes: usize) -> std::result::Result<(), String> {
        let end = address.checked_add(bytes as u64).filter(|end| *end <= VIRTUAL.start);
        let Some(end) = end.filter(|_| bytes > 0 && address > 0) else {
            return Err("is not memory. Fix: give its first address and its size".into());
        };
        let alignment = match &self.backend {
            DeviceBackend::Host(_) => HOST_ALIGNMENT,
            DeviceBackend::Cuda(_) => ALIGNMENT,
        };
        if !address.is_multiple_of(alignment as u64) {
            let rule = format!("Rule: kernels need memory that begins at a multiple of {alignment}");
            return Err(format!("begins elsewhere. {rule}. Fix: adopt from the start of the allocation"));
        }
        if self.areas.range(..end).next_back().is_some_and(|(_, area)| area.end > address) {
            let rule = "Rule: memory is in one area";
            return Err(format!(
                "lies in an area that this device has. {rule}. Fix: adopt it once, and make tensors in it"
            ));
        }
        if let DeviceBackend::Cuda(cuda) = &self.backend
            && gpu_of(address) != Some(cuda.gpu.properties.ordinal)
        {
            let gpu = &cuda.gpu.properties;
            let rule = format!("Rule: operations of GPU {}, {}, work in its memory", gpu.ordinal, gpu.name);
            return Err(format!(
                "is not memory of that GPU. {rule}. Fix: allocate it there, in the GPU's primary context"
            ));
        }
        Ok(())
    }
}
