//! What the driver counts about GPUs, by NVML, its own library: their energy, and how busy they are.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};

use libloading::{Library, Symbol};

/// A return code. 0 is success.
type Code = c_int;

/// A GPU.
type Handle = *mut c_void;

/// Shares of the last second, or less, in percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: u32,
    memory: u32,
}

/// NVML, started. It ends when this is dropped.
struct Nvml(Library);

impl Nvml {
    fn open() -> Option<Nvml> {
        // SAFETY: the driver's library. Its initializers do nothing of note.
        let library = Nvml(unsafe { Library::new("libnvidia-ml.so.1") }.ok()?);
        // SAFETY: the function's type.
        let started = unsafe { library.function::<unsafe extern "C" fn() -> Code>("nvmlInit_v2")?() };
        (started == 0).then_some(library)
    }

    /// # Safety
    /// NVML's header gives the function this type.
    unsafe fn function<T>(&self, name: &str) -> Option<Symbol<'_, T>> {
        // SAFETY: the caller's promise.
        unsafe { self.0.get(name) }.ok()
    }

    fn count(&self) -> Option<u32> {
        let mut count = 0;
        // SAFETY: the function's type; it writes one number.
        let code =
            unsafe { self.function::<unsafe extern "C" fn(*mut u32) -> Code>("nvmlDeviceGetCount_v2")?(&mut count) };
        (code == 0).then_some(count)
    }

    fn by_index(&self, index: u32) -> Option<Handle> {
        type Get = unsafe extern "C" fn(u32, *mut Handle) -> Code;
        let mut gpu = std::ptr::null_mut();
        // SAFETY: the function's type; it writes one handle.
        let code = unsafe { self.function::<Get>("nvmlDeviceGetHandleByIndex_v2")?(index, &mut gpu) };
        (code == 0).then_some(gpu)
    }

    fn by_uuid(&self, uuid: &str) -> Option<Handle> {
        type Get = unsafe extern "C" fn(*const c_char, *mut Handle) -> Code;
        let (uuid, mut gpu) = (CString::new(uuid).ok()?, std::ptr::null_mut());
        // SAFETY: the function's type; it reads a text that ends with 0, and writes one handle.
        let code = unsafe { self.function::<Get>("nvmlDeviceGetHandleByUUID")?(uuid.as_ptr(), &mut gpu) };
        (code == 0).then_some(gpu)
    }

    fn utilization(&self, gpu: Handle) -> Option<Utilization> {
        type Get = unsafe extern "C" fn(Handle, *mut Utilization) -> Code;
        let mut rates = Utilization::default();
        // SAFETY: the function's type; the handle is NVML's, and it writes one structure.
        let code = unsafe { self.function::<Get>("nvmlDeviceGetUtilizationRates")?(gpu, &mut rates) };
        (code == 0).then_some(rates)
    }

    /// Millijoules since the driver was loaded.
    fn energy(&self, gpu: Handle) -> Option<u64> {
        type Get = unsafe extern "C" fn(Handle, *mut u64) -> Code;
        let mut millijoules = 0;
        // SAFETY: the function's type; the handle is NVML's, and it writes one number.
        let code = unsafe { self.function::<Get>("nvmlDeviceGetTotalEnergyConsumption")?(gpu, &mut millijoules) };
        (code == 0).then_some(millijoules)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the function's type. A failure has no cure here.
        _ = unsafe { self.function::<unsafe extern "C" fn() -> Code>("nvmlShutdown").map(|shutdown| shutdown()) };
    }
}

/// Reads the counter of one GPU's energy.
pub struct EnergyMeter {
    nvml: Nvml,
    gpu: Handle,
}

impl EnergyMeter {
    /// A meter for the GPU with this UUID, 32 hexadecimal digits. `None` without NVML, and for a GPU that does not
    /// count energy.
    pub fn open(uuid: &str) -> Option<EnergyMeter> {
        let uuid = with_hyphens(uuid)?;
        let nvml = Nvml::open()?;
        let gpu = nvml.by_uuid(&uuid)?;
        let meter = EnergyMeter { nvml, gpu };
        meter.joules().map(|_| meter)
    }

    /// Joules since the driver was loaded. The counter moves every 20 to 100 ms.
    pub fn joules(&self) -> Option<f64> {
        self.nvml.energy(self.gpu).map(|millijoules| millijoules as f64 / 1e3)
    }
}

/// A UUID as NVML writes it.
fn with_hyphens(digits: &str) -> Option<String> {
    let part = |from: usize, to: usize| digits.get(from..to);
    let parts = [part(0, 8)?, part(8, 12)?, part(12, 16)?, part(16, 20)?, part(20, 32)?];
    Some(format!("GPU-{}", parts.join("-")))
}

/// Reads the loads of all GPUs of the machine.
pub struct GpuLoads(Nvml);

impl GpuLoads {
    /// `None` without NVML.
    pub fn open() -> Option<GpuLoads> {
        Nvml::open().map(GpuLoads)
    }

    /// The share of the last second, or less, in which each GPU ran a kernel, in percent. Without those that do not
    /// tell.
    pub fn percents(&self) -> Vec<u32> {
        let load = |index| Some(self.0.utilization(self.0.by_index(index)?)?.gpu);
        (0..self.0.count().unwrap_or(0)).filter_map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_does_and_without_that_gpu_there_is_no_meter() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert_eq!(with_hyphens(digits).as_deref(), Some("GPU-01234567-89ab-cdef-0123-456789abcdef"));
        assert!(EnergyMeter::open(digits).is_none());
        assert!(EnergyMeter::open("short").is_none());
    }
}
