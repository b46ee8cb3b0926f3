//! How busy this machine's GPUs are, as their driver counts it.

use nvml_wrapper::Nvml;

/// Reads the loads of all GPUs of the machine.
pub struct GpuLoads(Nvml);

impl GpuLoads {
    /// `None` without NVML, a part of the driver.
    pub fn open() -> Option<GpuLoads> {
        Nvml::init().ok().map(GpuLoads)
    }

    /// The share of the last second, or less, in which each GPU ran a kernel, in percent. Without those that do not tell.
    pub fn percents(&self) -> Vec<u32> {
        let gpus = 0..self.0.device_count().unwrap_or(0);
        let load = |gpu| Some(self.0.device_by_index(gpu).ok()?.utilization_rates().ok()?.gpu);
        gpus.filter_map(load).collect()
    }
}
