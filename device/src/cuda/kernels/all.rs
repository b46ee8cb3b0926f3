//! The kernels of all operations.

use super::nvrtc::fill_cache;
use super::{KernelFile, KernelSet, files_of};
use crate::cuda::states::DIGEST_FILE;
use crate::cuda::{CudaDevice, CudaOptions};
use crate::gpu_types::{FP8_CAPABILITY, GpuProperties};
use crate::{Op, Result};

/// The files of all kernels: those that operations name, and the device's own.
pub fn kernel_files() -> Vec<KernelFile> {
    let mut files = vec![DIGEST_FILE];
    for file in Op::kernel_files().into_iter().flatten() {
        if files.iter().all(|known| known.name != file.name) {
            files.push(*file);
        }
    }
    files
}

/// Compiles the kernels of 8-bit copies and of experts, where the cache on disk lacks them. It waits for the
/// compiler, so a program that needs all of them calls it on a thread of its own, beside its other work.
pub fn compile_sets(gpu: &GpuProperties) {
    let sets = [KernelSet::Experts, KernelSet::Fp8].into_iter();
    let can_run = sets.filter(|set| *set != KernelSet::Fp8 || gpu.capability >= FP8_CAPABILITY);
    let all = kernel_files();
    let files: Vec<_> = can_run.flat_map(|set| files_of(set, &all, gpu)).collect();
    fill_cache(&files, &gpu.architecture());
}

/// Opens a GPU, with the kernels of all operations.
///
/// # Errors
/// As [`CudaDevice::open`].
pub(crate) fn open(options: CudaOptions) -> Result<CudaDevice> {
    CudaDevice::open(options, kernel_files())
}
