//! Whether NVIDIA's libraries can be loaded.

#![allow(unsafe_code)]

use cudarc::driver::sys::CUDA_VERSION;

/// Whether cudarc finds the library of that name, such as `cuda`. A program that links the libraries has them.
pub(crate) fn is_present(library: &str) -> bool {
    // Those of cudarc's names that NVIDIA's packages for Linux have: cudarc ends the program if it finds none.
    let newest = CUDA_VERSION / 1000;
    let endings = [String::new(), format!(".{newest}"), ".12".into(), ".9".into(), ".1".into()];
    // SAFETY: NVIDIA's libraries. Their initializers do nothing of note.
    endings.iter().any(|ending| unsafe { libloading::Library::new(format!("lib{library}.so{ending}")) }.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_under_the_name_that_its_package_has() {
        assert!(is_present("nvrtc"), "run `./x test`, which installs it");
        assert!(!is_present("nvrtc-of-nobody"));
    }
}
