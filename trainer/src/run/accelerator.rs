//! Which device a rank runs on, and what is known of its speed.

use common::UserError;
use device::cuda::{CudaOptions, gpu_count};
use device::{Device, HostOptions};
use launch::RankEnv;

/// Where a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The CPU.
    Host,
    /// A GPU, by its number among those visible.
    Cuda(usize),
}

/// How exactly a GPU computes; the host is always exact and repeats itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Precision {
    /// The same bits from run to run.
    pub deterministic: bool,
    /// Products of f32 in TF32.
    pub tf32: bool,
}

impl Accelerator {
    /// What `train.device` means on this machine: `auto` takes a GPU where there are a driver and one for each rank.
    ///
    /// # Errors
    /// A GPU is wanted where there is none, or fewer than ranks of this node.
    pub fn choose(device: &str, env: &RankEnv) -> Result<Accelerator, UserError> {
        let gpus = if device == "host" { 0 } else { gpu_count() };
        match gpus {
            0 if device == "cuda" => Err(UserError::new(
                "train.device = \"cuda\"",
                "NVIDIA's driver (libcuda.so.1) and a GPU are there",
                "install the driver, or set train.device = \"host\"",
            )),
            0 => Ok(Accelerator::Host),
            // A launcher may show each rank its own GPU alone.
            1 if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() => Ok(Accelerator::Cuda(0)),
            _ if gpus >= env.local_size => Ok(Accelerator::Cuda(env.local_rank)),
            _ => Err(UserError::new(
                format!("{} ranks on a node with {gpus} visible GPUs", env.local_size),
                "each rank has a GPU of its own",
                format!("start {gpus} ranks a node, or set train.device = \"host\""),
            )),
        }
    }

    /// `host` or `cuda`: all ranks of a run have the same.
    pub fn kind(self) -> &'static str {
        match self {
            Accelerator::Host => "host",
            Accelerator::Cuda(_) => "cuda",
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// The driver's or a library's; threads that cannot be started.
    pub fn open(self, precision: Precision, threads: usize, check: bool) -> device::Result<Device> {
        match self {
            Accelerator::Host => Device::host(HostOptions { threads, check, dry: false }),
            Accelerator::Cuda(ordinal) => {
                let Precision { deterministic, tf32 } = precision;
                Device::cuda(CudaOptions { ordinal, deterministic, tf32, check })
            }
        }
    }
}

/// Dense matrix peak of a GPU in TFLOP/s for a type of compute, from NVIDIA's data sheets; none where it is not known.
pub fn peak_tflops(gpu: &str, compute: &str) -> Option<f64> {
    const BF16: &[(&str, f64)] = &[
        ("B200", 2250.0),
        ("GH200", 989.4),
        ("H200", 989.4),
        ("H100 PCIe", 756.0),
        ("H100 NVL", 835.0),
        ("H100", 989.4),
        ("A100", 311.9),
        ("L40S", 362.0),
        ("RTX 4090", 165.2),
        ("A10", 125.0),
    ];
    // Whole words: an A10G is no A10, and an RTX A1000 no A100.
    let words = |text: &str| format!(" {} ", text.replace(|c: char| !c.is_ascii_alphanumeric(), " "));
    let gpu = words(gpu);
    let bf16 = BF16.iter().find(|(name, _)| gpu.contains(&words(name))).map(|(_, peak)| *peak)?;
    match compute {
        "bf16" => Some(bf16),
        "tf32" => Some(bf16 / 2.0),
        _ => None, // the plain f32 units' peak does not follow from the matrix units'
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_name_of_a_gpu_decides_its_peak() {
        assert_eq!(peak_tflops("NVIDIA H100 PCIe", "bf16"), Some(756.0));
        assert_eq!(peak_tflops("NVIDIA H100 80GB HBM3", "bf16"), Some(989.4));
        assert_eq!(peak_tflops("NVIDIA H200", "tf32"), Some(494.7));
        assert_eq!(peak_tflops("NVIDIA A100-SXM4-80GB", "bf16"), Some(311.9));
        for other in ["Tesla T4", "NVIDIA RTX A1000", "NVIDIA A10G", "NVIDIA GB200"] {
            assert_eq!(peak_tflops(other, "bf16"), None, "{other}");
        }
    }
}
