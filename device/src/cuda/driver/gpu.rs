//! The GPU itself: driver, context, properties.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::error::{Driver, missing_library};
use crate::cuda::libraries::is_present;
use crate::gpu_types::{GpuProperties, NoGpu};
use crate::{Error, Result};

thread_local! {
    /// The GPU that this thread uses. Its context is made current once, when the GPU is opened.
    static OF_THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A GPU with its primary context current on the thread that opened it.
pub(crate) struct Gpu {
    /// The GPU's primary context. Staging memory holds it too, since it may outlive the device in another thread.
    pub(crate) context: Arc<PrimaryContext>,
    /// The GPU's properties.
    pub(crate) properties: GpuProperties,
}

/// The number of GPUs that this process can see. 0 without a driver.
pub fn gpu_count() -> usize {
    if !is_present("cuda") || result::init().is_err() {
        return 0;
    }
    result::device::get_count().map_or(0, |count| count.max(0) as usize)
}

/// Why this process sees no GPU. `None` if it sees one.
pub fn why_no_gpu() -> Option<NoGpu> {
    let has_driver = is_present("cuda");
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let count = match has_driver {
        true => result::init().and_then(|()| result::device::get_count()).map_err(|error| error.0),
        false => Ok(0),
    };
    reason(has_driver, count, visible.as_deref(), Path::new("/dev/nvidiactl").exists())
}

/// The reason why no GPU can be used, from four findings: whether the driver's library can be loaded, the number of GPUs
/// that it shows or its error, `CUDA_VISIBLE_DEVICES`, and whether the kernel has NVIDIA's driver.
fn reason(
    has_driver: bool,
    count: std::result::Result<i32, sys::CUresult>,
    visible: Option<&str>,
    in_kernel: bool,
) -> Option<NoGpu> {
    use sys::CUresult::*;
    let (why, fix) = match (has_driver, count) {
        (true, Ok(1..)) => return None,
        (false, _) if in_kernel => (
            "the kernel has NVIDIA's driver, but its library libcuda.so.1 is not found".into(),
            "start the container with its GPUs (docker: --gpus all), or add the library's folder to LD_LIBRARY_PATH",
        ),
        (false, _) => (
            "NVIDIA's driver is not installed: its library libcuda.so.1 is not found".into(),
            "install the driver, 570 or newer; in a container, start it with its GPUs (docker: --gpus all)",
        ),
        (true, Ok(_) | Err(CUDA_ERROR_NO_DEVICE | CUDA_ERROR_INVALID_DEVICE)) => match visible {
            Some(visible) => (
                format!("CUDA_VISIBLE_DEVICES={visible} hides all GPUs"),
                "unset it, or name GPUs that nvidia-smi lists",
            ),
            None => (
                "the driver finds no GPU".into(),
                "see what nvidia-smi says; in a container, start it with its GPUs (docker: --gpus all)",
            ),
        },
        (true, Err(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)) => (
            "libcuda.so.1 does not belong to the driver in the kernel".into(),
            "restart the machine after an update of the driver, or take another libcuda.so.1 off LD_LIBRARY_PATH",
        ),
        (true, Err(error)) => (format!("the driver does not start ({error:?})"), "see what nvidia-smi says"),
    };
    Some(NoGpu { why, fix })
}

impl Gpu {
    /// Opens a GPU and makes its primary context current on this thread.
    ///
    /// # Errors
    /// No driver or an old one, no such GPU, or compute capability below 8.0.
    pub(crate) fn open(ordinal: usize) -> Result<Gpu> {
        if !is_present("cuda") {
            let fix = "install NVIDIA's driver, or use --device host";
            return Err(missing_library("cuda", "libcuda.so.1", "the system's folders", fix));
        }
        if let Some(other) = OF_THREAD.get().filter(|other| *other != ordinal) {
            let problem = format!("GPU {ordinal} was asked for on a thread that uses GPU {other}. Fix: another thread");
            return Err(Error::operation("device", problem));
        }
        refuse_old_driver(driver_version()?)?;
        result::init().driver("cuInit")?;
        let count = result::device::get_count().driver("cuDeviceGetCount")?.max(0) as usize;
        if ordinal >= count {
            let problem = format!(
                "GPU {ordinal} was asked for, {count} are visible. Fix: fewer ranks a node, or CUDA_VISIBLE_DEVICES"
            );
            return Err(Error::operation("device", problem));
        }
        let device = result::device::get(ordinal as i32).driver("cuDeviceGet")?;
        let properties = read_properties(ordinal, device)?;
        let (major, minor) = properties.capability;
        if major < 8 {
            let problem = format!(
                "GPU {ordinal}, {}, has compute capability {major}.{minor}; bf16 needs 8.0. Fix: a newer GPU, or --device host",
                properties.name
            );
            return Err(Error::operation("device", problem));
        }
        let context = Arc::new(PrimaryContext::make_current(device)?);
        OF_THREAD.set(Some(ordinal));
        Ok(Gpu { context, properties })
    }

    /// Free and total bytes of memory.
    pub(crate) fn memory(&self) -> Result<(usize, usize)> {
        result::mem_get_info().driver("cuMemGetInfo")
    }
}

/// The context of a GPU that all libraries share. It is released when this is dropped.
pub(crate) struct PrimaryContext {
    device: sys::CUdevice,
}

impl PrimaryContext {
    fn make_current(device: sys::CUdevice) -> Result<PrimaryContext> {
        // SAFETY: the caller got the device from the driver.
        let context = unsafe { result::primary_ctx::retain(device) }.driver("cuDevicePrimaryCtxRetain")?;
        let retained = PrimaryContext { device };
        // SAFETY: retained above.
        unsafe { result::ctx::set_current(context) }.driver("cuCtxSetCurrent")?;
        Ok(retained)
    }

    /// Makes the context current on this thread too. The thread must not use it any more when this value is gone.
    pub(crate) fn enter(&self) -> Result<()> {
        PrimaryContext::make_current(self.device).map(drop)
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained in `make_current`. Areas, streams, graphs and staging memory hold the context, so they are
        // dropped before. Events and copies to the host do not: their owners drop them first, or hold staging memory. A
        // failure has no cure here.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// The newest CUDA the driver knows, as 1000 * major + 10 * minor.
pub(in crate::cuda) fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().driver("cuDriverGetVersion")?;
    Ok(version)
}

/// The driver of this CUDA and later ones has all functions that are called. `cuEventElapsedTime_v2` is the newest.
const OLDEST_DRIVER: i32 = 12080;

fn refuse_old_driver(version: i32) -> Result<()> {
    if version >= OLDEST_DRIVER {
        return Ok(());
    }
    let cuda = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    let problem = format!(
        "the driver is for CUDA {}, and {} is the oldest that will do. Fix: NVIDIA's driver 570 or newer, or --device host",
        cuda(version),
        cuda(OLDEST_DRIVER)
    );
    Err(Error::operation("device", problem))
}

fn read_properties(ordinal: usize, device: sys::CUdevice) -> Result<GpuProperties> {
    use sys::CUdevice_attribute::*;
    // SAFETY: the device exists.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.driver("cuDeviceGetAttribute");
    let uuid = result::device::get_uuid(device).driver("cuDeviceGetUuid")?;
    Ok(GpuProperties {
        ordinal,
        name: result::device::get_name(device).driver("cuDeviceGetName")?,
        uuid: uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect(),
        capability: (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        // SAFETY: the device exists.
        memory_bytes: unsafe { result::device::total_mem(device) }.driver("cuDeviceTotalMem")?,
        shared_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        driver_version: driver_version()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_for_no_gpu_has_its_own_words_and_a_gpu_needs_none() {
        use sys::CUresult::*;
        assert_eq!(reason(true, Ok(2), Some("0,1"), true), None);
        for (found, words) in [
            (reason(false, Ok(0), None, false), "is not installed"),
            (reason(false, Ok(0), None, true), "the kernel has NVIDIA's driver"),
            (reason(true, Err(CUDA_ERROR_NO_DEVICE), None, true), "the driver finds no GPU"),
            (reason(true, Err(CUDA_ERROR_NO_DEVICE), Some(""), true), "CUDA_VISIBLE_DEVICES= hides all GPUs"),
            (reason(true, Ok(0), Some("7"), true), "CUDA_VISIBLE_DEVICES=7 hides all GPUs"),
            (reason(true, Err(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), None, true), "does not belong to the driver"),
            (reason(true, Err(CUDA_ERROR_UNKNOWN), None, true), "does not start (CUDA_ERROR_UNKNOWN)"),
        ] {
            let found = found.unwrap();
            assert!(found.why.contains(words) && !found.fix.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn a_driver_older_than_what_is_called_is_refused_with_both_versions_and_the_fix() {
        assert!(refuse_old_driver(12080).is_ok() && refuse_old_driver(13000).is_ok());
        let error = refuse_old_driver(12040).unwrap_err().to_string();
        for words in ["CUDA 12.4", "12.8 is the oldest", "Fix: NVIDIA's driver 570"] {
            assert!(error.contains(words), "{error}");
        }
    }
}
