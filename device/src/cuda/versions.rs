//! Which libraries were found, for people who wonder which.

#![allow(unsafe_code)]

use cudarc::{cublaslt, cudnn, nvrtc};

/// Name and version of each library the device uses; none for one that was not found.
pub fn library_versions() -> Vec<(&'static str, Option<String>)> {
    // SAFETY: each library is asked for its version only after a look whether it can be loaded.
    unsafe {
        vec![
            ("NVRTC", nvrtc::sys::is_culib_present().then(|| nvrtc_version()).flatten()),
            (
                "cuBLASLt",
                cublaslt::sys::is_culib_present().then(|| {
                    let version = cublaslt::sys::cublasLtGetVersion();
                    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
                }),
            ),
            (
                "cuDNN",
                cudnn::sys::is_culib_present().then(|| {
                    let version = cudnn::sys::cudnnGetVersion();
                    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
                }),
            ),
        ]
    }
}

/// # Safety
/// NVRTC can be loaded.
unsafe fn nvrtc_version() -> Option<String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes two integers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    Some(format!("{major}.{minor}"))
}
