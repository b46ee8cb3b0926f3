//! The device of a rank.

use common::UserError;
use common::format::counted;
use device::cuda::{CudaOptions, gpu_count, why_no_gpu};
use device::{Device, HostOptions, is_under_profiler};
use engine::precision::Precision;
use launch::RankEnv;

use crate::config::DeviceChoice;

/// The device of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The CPU.
    Host,
    /// A GPU, by the GPU's number among the visible GPUs.
    Cuda(usize),
}

/// How exactly a GPU computes. The host needs neither setting: it is always deterministic and never rounds to TF32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exactness {
    /// The same bits from run to run.
    pub deterministic: bool,
    /// Matrix products of f32 in TF32.
    pub tf32: bool,
}

impl Exactness {
    /// The exactness of a run.
    pub fn new(deterministic: bool, precision: Precision) -> Exactness {
        Exactness { deterministic, tf32: precision.rounds_to_tf32() }
    }
}

impl Accelerator {
    /// The device that `choice` means on this machine.
    ///
    /// # Errors
    /// A GPU is asked for, and there is none; there are GPUs, but fewer than ranks on this node.
    pub fn choose(choice: DeviceChoice, env: &RankEnv) -> Result<Accelerator, UserError> {
        let gpus = if choice == DeviceChoice::Host { 0 } else { gpu_count() };
        match gpus {
            0 if choice == DeviceChoice::Cuda => {
                let (why, fix) = why_no_gpu().map_or_else(Default::default, |none| (none.why, none.fix));
                Err(UserError::new(
                    format!("train.device = \"cuda\": {why}"),
                    "NVIDIA's driver is installed, and there is a GPU",
                    format!("{fix}; or set train.device = \"host\""),
                ))
            }
            0 => Ok(Accelerator::Host),
            // A launcher may make only its own GPU visible to each rank.
            1 if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() => Ok(Accelerator::Cuda(0)),
            _ if gpus >= env.local_size => Ok(Accelerator::Cuda(env.local_rank)),
            _ => Err(UserError::new(
                format!("{} ranks on a node with {}", env.local_size, counted(gpus, "visible GPU")),
                "each rank has a GPU of its own",
                format!("start {} a node, or set train.device = \"host\"", counted(gpus, "rank")),
            )),
        }
    }

    /// `host` or `cuda`. All ranks of a run have the same.
    pub fn kind(self) -> &'static str {
        match self {
            Accelerator::Host => "host",
            Accelerator::Cuda(_) => "cuda",
        }
    }

    /// Opens the device. With `check`, every operation is checked for races. Under a profiler of NVIDIA it makes NVTX ranges.
    ///
    /// # Errors
    /// Errors of the driver or of a library; threads that cannot be started.
    pub fn open(self, exactness: Exactness, threads: usize, check: bool) -> device::Result<Device> {
        let device = match self {
            Accelerator::Host => Device::host(HostOptions { threads, check, dry: false })?,
            Accelerator::Cuda(ordinal) => {
                let Exactness { deterministic, tf32 } = exactness;
                Device::cuda(CudaOptions { ordinal, deterministic, tf32, check })?
            }
        };
        device.set_nvtx(is_under_profiler());
        Ok(device)
    }
}
