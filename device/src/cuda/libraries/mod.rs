//! The libraries that are loaded at run time, and the packages that contain them.

mod nvml;
mod presence;
mod python_packages;
mod versions;

use std::path::PathBuf;

use cudarc::driver::sys::CUDA_VERSION;

use super::driver::{driver_version, missing_library};
use crate::Result;
pub use nvml::{EnergyMeter, GpuLoads};
pub(crate) use presence::is_present;
use python_packages::load_from;
pub use python_packages::load_library;
pub use versions::library_versions;

/// A library of a CUDA version. The driver must support that version.
#[derive(Clone, Copy, Debug)]
pub(super) enum Library {
    Nvrtc,
    CublasLt,
    Cudnn,
    Cupti,
}

impl Library {
    /// Finds the library: where the loader looks, in NVIDIA's Python packages beside this program, and CUPTI also in
    /// CUDA's toolkit.
    ///
    /// # Errors
    /// The library is in none of these. The error names the packages for this machine's driver.
    pub(super) fn load(self) -> Result<()> {
        if is_present(self.name()) {
            return Ok(());
        }
        let file = self.file(usable_major());
        if let Library::Cudnn = self {
            // It loads these itself, by name.
            [Library::Nvrtc, Library::CublasLt].into_iter().for_each(|needed| _ = needed.load());
        }
        let found = load_library(&file) || (matches!(self, Library::Cupti) && load_from(&toolkits(), &file));
        if found && is_present(self.name()) {
            return Ok(());
        }
        let last = "the system's folders and Python packages beside the program";
        Err(missing_library(self.name(), &file, last, &self.install()))
    }

    /// The name by which a linker knows the library.
    fn name(self) -> &'static str {
        match self {
            Library::Nvrtc => "nvrtc",
            Library::CublasLt => "cublasLt",
            Library::Cudnn => "cudnn",
            Library::Cupti => "cupti",
        }
    }

    /// How to install the library, for this machine's driver.
    pub(super) fn install(self) -> String {
        self.install_for(usable_major())
    }

    fn file(self, cuda: i32) -> String {
        let version = if let Library::Cudnn = self { 9 } else { cuda };
        format!("lib{}.so.{version}", self.name())
    }

    fn install_for(self, cuda: i32) -> String {
        let (what, debian, pypi) = match (self, cuda) {
            (Library::Nvrtc, 12) => ("CUDA 12's NVRTC", "libnvrtc12", "nvidia-cuda-nvrtc-cu12"),
            (Library::Nvrtc, _) => ("CUDA 13's NVRTC", "libnvrtc13", "nvidia-cuda-nvrtc"),
            (Library::CublasLt, 12) => ("CUDA 12's cuBLAS", "libcublas-12-8", "nvidia-cublas-cu12"),
            (Library::CublasLt, _) => ("CUDA 13's cuBLAS", "libcublas-13-0", "nvidia-cublas"),
            (Library::Cudnn, 12) => ("cuDNN 9 for CUDA 12", "libcudnn9-cuda-12", "nvidia-cudnn-cu12"),
            (Library::Cudnn, _) => ("cuDNN 9 for CUDA 13", "libcudnn9-cuda-13", "nvidia-cudnn-cu13"),
            (Library::Cupti, 12) => ("CUDA 12's CUPTI", "cuda-cupti-12-8", "nvidia-cuda-cupti-cu12"),
            (Library::Cupti, _) => ("CUDA 13's CUPTI", "cuda-cupti-13-0", "nvidia-cuda-cupti"),
        };
        let or = if matches!(self, Library::Cupti) { ", or set CUDA_HOME" } else { "" };
        format!("install {what} (Debian: {debian}, PyPI: {pypi}){or}")
    }
}

/// The folders of CUPTI in CUDA's toolkits.
fn toolkits() -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let homes = homes.chain([PathBuf::from("/usr/local/cuda")]);
    homes.flat_map(|home| [home.join("extras/CUPTI/lib64"), home.join("lib64")]).collect()
}

/// The major version of the newest CUDA that this build uses and the driver, if there is one, supports.
fn usable_major() -> i32 {
    let newest = CUDA_VERSION as i32;
    let driver = if is_present("cuda") { driver_version().unwrap_or(newest) } else { newest };
    driver.min(newest) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_asked_for_in_the_version_that_the_driver_knows() {
        for library in [Library::Nvrtc, Library::CublasLt, Library::Cudnn, Library::Cupti] {
            let (twelve, thirteen) = (library.install_for(12), library.install_for(13));
            assert!(twelve.contains("CUDA 12") && twelve.contains("-cu12") && !twelve.contains("13"), "{twelve}");
            assert!(thirteen.contains("CUDA 13") && !thirteen.contains("12"), "{thirteen}");
        }
        assert_eq!([12, 13].map(|cuda| Library::Nvrtc.file(cuda)), ["libnvrtc.so.12", "libnvrtc.so.13"]);
        assert_eq!([12, 13].map(|cuda| Library::Cudnn.file(cuda)), ["libcudnn.so.9", "libcudnn.so.9"]);
    }
}
