//! The GPU itself: driver, context, properties.

#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use super::error::{Driver, missing_library};
use crate::{Error, Result};

/// A GPU with its primary context current on the thread that opened it.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    /// What is known of it.
    pub(crate) properties: GpuProperties,
}

/// What is known of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProperties {
    /// Its number among the visible GPUs.
    pub ordinal: usize,
    /// Its product name.
    pub name: String,
    /// Compute capability, such as `(9, 0)`.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory in all.
    pub memory_bytes: usize,
    /// Shared memory a block may ask for, in bytes.
    pub shared_bytes: u32,
    /// The driver's CUDA version, such as `13000`.
    pub driver_version: i32,
}

/// Number of GPUs a process can see; none without a driver.
pub fn gpu_count() -> usize {
    // SAFETY: only looks whether the driver library can be loaded.
    if !unsafe { sys::is_culib_present() } || result::init().is_err() {
        return 0;
    }
    result::device::get_count().map_or(0, |count| count.max(0) as usize)
}

impl Gpu {
    /// Opens a GPU and makes its primary context current on this thread.
    ///
    /// # Errors
    /// No driver, no such GPU, or compute capability below 8.0.
    pub(crate) fn open(ordinal: usize) -> Result<Gpu> {
        // SAFETY: only looks whether the driver library can be loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing_library("cuda", "libcuda.so.1", "install NVIDIA's driver, or use --device host"));
        }
        result::init().driver("cuInit")?;
        let count = result::device::get_count().driver("cuDeviceGetCount")?.max(0) as usize;
        if ordinal >= count {
            let problem = format!(
                "GPU {ordinal} was asked for, {count} are visible. Fix: fewer ranks a node, or CUDA_VISIBLE_DEVICES"
            );
            return Err(Error::operation("device", problem));
        }
        let device = result::device::get(ordinal as i32).driver("cuDeviceGet")?;
        let properties = GpuProperties::read(ordinal, device)?;
        let (major, minor) = properties.capability;
        if major < 8 {
            let problem = format!(
                "GPU {ordinal}, {}, has compute capability {major}.{minor}; bf16 needs 8.0. Fix: a newer GPU, or --device host",
                properties.name
            );
            return Err(Error::operation("device", problem));
        }
        // SAFETY: the device was got above; the context is released when this is dropped.
        unsafe {
            let context = result::primary_ctx::retain(device).driver("cuDevicePrimaryCtxRetain")?;
            result::ctx::set_current(context).driver("cuCtxSetCurrent")?;
        }
        Ok(Gpu { device, properties })
    }

    /// Free and total bytes of memory.
    pub(crate) fn memory(&self) -> Result<(usize, usize)> {
        result::mem_get_info().driver("cuMemGetInfo")
    }

    /// Blocks until everything submitted is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        result::ctx::synchronize().driver("cuCtxSynchronize")
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained in `open`; everything that used the context is dropped before. A failure has no cure here.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl GpuProperties {
    fn read(ordinal: usize, device: sys::CUdevice) -> Result<GpuProperties> {
        use sys::CUdevice_attribute::*;
        // SAFETY: the device exists.
        let attribute = |which| unsafe { result::device::get_attribute(device, which) }.driver("cuDeviceGetAttribute");
        let mut driver_version = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut driver_version) }.result().driver("cuDriverGetVersion")?;
        Ok(GpuProperties {
            ordinal,
            name: result::device::get_name(device).driver("cuDeviceGetName")?,
            capability: (
                attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
                attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
            ),
            multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            // SAFETY: the device exists.
            memory_bytes: unsafe { result::device::total_mem(device) }.driver("cuDeviceTotalMem")?,
            shared_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
            driver_version,
        })
    }

    /// The architecture kernels are compiled for: `sm_90a` on Hopper, whose own instructions need the `a`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if self.capability == (9, 0) { "a" } else { "" })
    }
}
