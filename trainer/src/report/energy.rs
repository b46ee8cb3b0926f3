//! The energy that a GPU takes, as its driver counts it.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Reads the counter of one GPU.
pub struct EnergyMeter {
    nvml: Nvml,
    uuid: String,
}

impl EnergyMeter {
    /// A meter for the GPU with this UUID, 32 hexadecimal digits. `None` without NVML, a part of the driver, and for a
    /// GPU that does not count energy.
    pub fn open(uuid: &str) -> Option<EnergyMeter> {
        let meter = EnergyMeter { nvml: Nvml::init().ok()?, uuid: with_hyphens(uuid)? };
        meter.joules().map(|_| meter)
    }

    /// Joules since the driver was loaded. The counter moves every 20 to 100 ms.
    pub fn joules(&self) -> Option<f64> {
        let millijoules =
            || -> Result<u64, NvmlError> { self.nvml.device_by_uuid(self.uuid.as_str())?.total_energy_consumption() };
        millijoules().ok().map(|millijoules| millijoules as f64 / 1e3)
    }
}

/// A UUID as NVML writes it.
fn with_hyphens(digits: &str) -> Option<String> {
    let part = |from: usize, to: usize| digits.get(from..to);
    let parts = [part(0, 8)?, part(8, 12)?, part(12, 16)?, part(16, 20)?, part(20, 32)?];
    Some(format!("GPU-{}", parts.join("-")))
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
