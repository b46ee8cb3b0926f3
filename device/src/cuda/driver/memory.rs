//! Device memory and host memory for copies, both at fixed addresses until dropped.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use cudarc::driver::{DriverError, result, sys};

use super::error::Driver;
use crate::{Element, Result};

/// The alignment of ordinary memory for copies.
const PAGE: usize = 4096;

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

    /// The address of its first byte.
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

/// Copies host data to device memory and waits.
pub(in crate::cuda) fn copy_to_device<T: Element>(address: u64, data: &[T]) -> Result<()> {
    // SAFETY: the caller checked that the memory is alive and as large.
    unsafe { result::memcpy_htod_sync(address, data) }.driver("cuMemcpyHtoD")?;
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

/// Copies device memory to the host and waits.
pub(in crate::cuda) fn copy_to_host<T: Element>(address: u64, count: usize) -> Result<Vec<T>> {
    let mut values = vec![T::zeroed(); count];
    // SAFETY: the caller checked that the memory is alive and as large.
    unsafe { result::memcpy_dtoh_sync(&mut values, address) }.driver("cuMemcpyDtoH")?;
    Ok(values)
}

/// A block of host memory for copies. Copies to and from page-locked memory do not block the host.
pub(crate) struct HostBlock {
    start: *mut u8,
    bytes: usize,
    /// Of ordinary memory.
    layout: Option<Layout>,
}

impl HostBlock {
    /// Page-locked memory.
    ///
    /// # Errors
    /// The system cannot lock that much.
    pub(crate) fn new(bytes: usize) -> Result<HostBlock> {
        // SAFETY: freed once, when dropped.
        let start = unsafe { result::malloc_host(bytes.max(1), 0) }.driver("cuMemHostAlloc")?.cast();
        Ok(HostBlock { start, bytes, layout: None })
    }

    /// Ordinary memory in its place. It needs no GPU.
    pub(crate) fn ordinary(bytes: usize) -> HostBlock {
        let layout = Layout::from_size_align(bytes.max(1), PAGE).unwrap_or(Layout::new::<u8>());
        assert!(layout.size() >= bytes, "{bytes} bytes are more than a machine has");
        // SAFETY: the layout is not empty. Freed once, when dropped.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        HostBlock { start, bytes, layout: Some(layout) }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies into it from its start.
    ///
    /// # Panics
    /// If `data` is larger than the block.
    pub(crate) fn fill<T: Element>(&mut self, data: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        assert!(bytes.len() <= self.bytes, "{} bytes into a block of {}", bytes.len(), self.bytes);
        // SAFETY: within the block. Nothing else refers to the block while it is borrowed mutably.
        unsafe { self.start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The first `count` values in it.
    pub(crate) fn slice<T: Element>(&self, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= self.bytes, "{count} values from a block of {} bytes", self.bytes);
        // SAFETY: within the block. The block begins at a page, and plain bytes are valid for any `Element`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), count) }
    }

    /// The first `count` values in it, to write.
    pub(crate) fn slice_mut<T: Element>(&mut self, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes, "{count} values in a block of {} bytes", self.bytes);
        // SAFETY: as in `slice`; nothing else refers to the block while it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), count) }
    }

    /// Its address, for the driver.
    pub(super) fn as_ptr(&self) -> *mut std::ffi::c_void {
        self.start.cast()
    }
}

// SAFETY: plain memory that one value owns; nothing in it belongs to a thread.
unsafe impl Send for HostBlock {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for HostBlock {}

impl Drop for HostBlock {
    fn drop(&mut self) {
        match self.layout {
            // SAFETY: allocated in `ordinary` with that layout; no copy refers to it any more.
            Some(layout) => unsafe { dealloc(self.start, layout) },
            // SAFETY: allocated in `new`; no copy refers to it any more. A failure has no cure here.
            None => drop(unsafe { result::free_host(self.start.cast()) }),
        }
    }
}
