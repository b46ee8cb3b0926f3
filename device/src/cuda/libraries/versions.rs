//! The versions of the libraries that were found, for reports.

/// The name and version of each library that the device uses. `None` for one that was not found.
pub fn library_versions() -> Vec<(&'static str, Option<String>)> {
    let nvrtc = ("NVRTC", crate::cuda::kernels::version().ok());
    #[cfg(feature = "trainer-ops")]
    let of_products = of_products::versions();
    #[cfg(not(feature = "trainer-ops"))]
    let of_products = [];
    std::iter::once(nvrtc).chain(of_products).collect()
}

#[cfg(feature = "trainer-ops")]
mod of_products {
    #![allow(unsafe_code)]

    use cudarc::{cublaslt, cudnn};

    use crate::cuda::libraries::Library;

    /// The libraries of matrix products and attention.
    pub(super) fn versions() -> [(&'static str, Option<String>); 2] {
        let words = |version: usize| format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
        // SAFETY: each library is asked for its version only if it can be loaded.
        unsafe {
            [
                ("cuBLASLt", Library::CublasLt.load().ok().map(|()| words(cublaslt::sys::cublasLtGetVersion()))),
                ("cuDNN", Library::Cudnn.load().ok().map(|()| words(cudnn::sys::cudnnGetVersion()))),
            ]
        }
    }
}
