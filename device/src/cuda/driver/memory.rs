//! Device memory, at a fixed address until dropped.

#![allow(unsafe_code)]

use cudarc::driver::{DriverError, result, sys};

use super::error::Driver;
use crate::{Element, Result};

/// Device memory from plain `cuMemAlloc`.
pub(crate) struct DeviceMemory {
    address: u64,
}

impl DeviceMemory {
    /// `None` if the GPU has less memory free.
    ///
    /// # Errors
    /// Any other of the driver's. It may be an error of work that was submitted earlier.
    pub(crate) fn new(bytes: usize) -> Result<Option<DeviceMemory>> {
        // SAFETY: freed once, when dropped.
        match unsafe { result::malloc_sync(bytes) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            allocated => Ok(Some(DeviceMemory { address: allocated.driver("cuMemAlloc")? })),
        }
    }

    /// The address of the memory's first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; `cuMemFree` waits for work that uses it. A failure has no cure here.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// The GPU, by its number among the visible ones, whose memory an address belongs to. `None` if it is no device memory.
pub(crate) fn gpu_of(address: u64) -> Option<usize> {
    let (mut kind, mut ordinal) = (0_u32, 0_i32);
    let mut attributes = [
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    ];
    let mut values = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    // SAFETY: asks for two numbers, and has room for both. The driver takes any address. For one that it does not know
    // the memory's type is 0.
    let found =
        unsafe { sys::cuPointerGetAttributes(2, attributes.as_mut_ptr(), values.as_mut_ptr(), address) }.result();
    let of_device = found.is_ok() && kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    of_device.then(|| usize::try_from(ordinal).ok()).flatten()
}

/// Copies host data to device memory, or to page-locked memory, and waits.
pub(in crate::cuda) fn copy_to_device<T: Element>(address: u64, data: &[T]) -> Result<()> {
    if data.is_empty() {
        return synchronize();
    }
    let from = data.as_ptr().expose_provenance() as u64;
    // SAFETY: the caller checked that the memory is alive and as large.
    unsafe { sys::cuMemcpy(address, from, size_of_val(data)) }.result().driver("cuMemcpy")?;
    synchronize()
}

/// Sets bytes of device memory to 0 and waits.
pub(in crate::cuda) fn zero(address: u64, bytes: usize) -> Result<()> {
    // SAFETY: the caller checked that the memory is alive and as large.
    unsafe { result::memset_d8_sync(address, 0, bytes) }.driver("cuMemsetD8")?;
    synchronize()
}

/// Waits for the work that the calls above began on the default stream. They return as soon as a small copy is staged
/// or a memory set is submitted, and our streams do not wait for the default stream.
fn synchronize() -> Result<()> {
    // SAFETY: the null pointer is the default stream.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }.driver("cuStreamSynchronize")
}

/// Copies device memory, or page-locked memory, to the host and waits.
pub(in crate::cuda) fn copy_to_host<T: Element>(address: u64, count: usize) -> Result<Vec<T>> {
    let mut values = vec![T::zeroed(); count];
    if count == 0 {
        return Ok(values);
    }
    let to = values.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the caller checked that the memory is alive and as large.
    unsafe { sys::cuMemcpy(to, address, count * size_of::<T>()) }.result().driver("cuMemcpy")?;
    Ok(values)
}
