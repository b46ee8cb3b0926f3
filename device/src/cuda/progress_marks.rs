//! Host memory that kernels leave marks in.

#![allow(unsafe_code)]

use cudarc::driver::sys;

use super::driver::{self, DeviceBlock, Driver};
use crate::progress::TRACKS;
use crate::{Error, Progress, Result};

/// The words of a [`Progress`], mapped into the GPU's addresses, and the counts that kernels keep of their own: reading
/// host memory would cost them a trip over the bus.
pub(crate) struct ProgressMarks {
    progress: Progress,
    /// Address of the words, for kernels.
    words: u64,
    /// u64, of all tracks together and of each.
    counts: DeviceBlock,
}

impl ProgressMarks {
    /// # Errors
    /// When the driver cannot map the memory.
    pub(crate) fn new(progress: Progress) -> Result<ProgressMarks> {
        let bytes = (1 + TRACKS) * size_of::<u64>();
        let none = || Error::operation("mark", format!("{bytes} bytes of GPU memory cannot be had"));
        let counts = DeviceBlock::new(bytes)?.ok_or_else(none)?;
        driver::zero(counts.address(), bytes)?;
        let host = progress.words().as_ptr() as *mut std::ffi::c_void;
        let mut words = 0;
        // SAFETY: `progress` keeps the memory where it is until it is unregistered in `drop`; it is of atomics, which
        // others may write to at any time.
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
        // SAFETY: registered in `new`; the streams, which were dropped before, have no kernel under way.
        let _ = unsafe { sys::cuMemHostUnregister(self.progress.words().as_ptr() as *mut std::ffi::c_void) };
    }
}
