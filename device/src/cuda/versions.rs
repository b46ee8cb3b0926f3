//! The versions of the libraries that were found, for reports.

#![allow(unsafe_code)]

use cudarc::{cublaslt, cudnn};

use super::libraries::Library;

/// The name and version of each library that the device uses. `None` for one that was not found.
pub fn library_versions() -> Vec<(&'static str, Option<String>)> {
    // SAFETY: each library is asked for its version only if it can be loaded.
    unsafe {
        vec![
            ("NVRTC", super::compile::version().ok()),
            (
                "cuBLASLt",
                Library::CublasLt.load().ok().map(|()| {
                    let version = cublaslt::sys::cublasLtGetVersion();
                    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
                }),
            ),
            (
                "cuDNN",
                Library::Cudnn.load().ok().map(|()| {
                    let version = cudnn::sys::cudnnGetVersion();
                    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
                }),
            ),
        ]
    }
}
