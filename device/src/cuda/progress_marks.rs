//! Host memory for the progress marks of kernels.

#![allow(unsafe_code)]

use cudarc::driver::sys;

use super::driver::{self, DeviceMemory, Driver};
use crate::progress::TRACKS;
use crate::{Error, Progress, Result};

/// The words of a [`Progress`], mapped into the GPU's addresses. Kernels count in GPU memory, since they would have to
/// read host memory over the bus.
pub(crate) struct ProgressMarks {
    progress: Progress,
    /// Address of the words, for kernels.
    words: u64,
    /// u64: the count of all tracks together, then that of each track.
    counts: DeviceMemory,
}

impl ProgressMarks {
    /// # Errors
    /// The driver cannot map the memory.
    pub(crate) fn new(progress: Progress) -> Result<ProgressMarks> {
        let bytes = (1 + TRACKS) * size_of::<u64>();
        let none = || Error::operation("mark", format!("{bytes} bytes of GPU memory cannot be had"));
        let counts = DeviceMemory::new(bytes)?.ok_or_else(none)?;
        driver::zero(counts.address(), bytes)?;
        let host = progress.words().as_ptr() as *mut std::ffi::c_void;
        let mut words = 0;
        // SAFETY: `progress` keeps the memory in place until it is unregistered in `drop`. The memory is atomics, so
        // others may write to it at any time.
        unsafe {
            sys::cuMemHostRegister_v2(host, size_of_val(progress.words()), sys::CU_MEMHOSTREGISTER_DEVICEMAP)
                .result()
                .driver("cuMemHostRegister")?;
            let mapped = sys::cuMemHostGetDevicePointer_v2(&mut words, host, 0).result();
            if mapped.is_err() {
                let _ = sys::cuMemHostUnregister(host);
            }
            mapped.driver("cuMemHostGetDevicePointer")?;
        }
        Ok(ProgressMarks { progress, words, counts })
    }

    /// Addresses of the words and of the counts.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.words, self.counts.address())
    }
}

impl Drop for ProgressMarks {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. The streams were dropped before, so no kernel is under way.
        let _ = unsafe { sys::cuMemHostUnregister(self.progress.words().as_ptr() as *mut std::ffi::c_void) };
    }
}
