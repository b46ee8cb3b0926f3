//! The files of our own kernels.

/// The kernels that are loaded together. All but those that are always loaded are loaded once a run needs one of them: to
/// compile them takes seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSet {
    /// Loaded when the device is opened.
    Always,
    /// Of 8-bit copies.
    Fp8,
    /// Of mixtures of experts.
    Experts,
    /// Kernels that are loaded with those of experts, by GPUs of compute capability 9.0 alone.
    ExpertsOnHopper,
    /// The kernel of [`When`](crate::ops::When), which is in no set.
    When,
}

/// A file of `kernels/`. Each is a program of its own.
#[derive(Clone, Copy, Debug)]
pub struct KernelFile {
    /// The set that the file's kernels are loaded with.
    pub set: KernelSet,
    /// The file's name.
    pub name: &'static str,
    /// The file's text.
    pub source: &'static str,
}

/// A [`KernelFile`] by its name. Its kernels are always loaded, unless a set comes first.
macro_rules! kernel_file {
    ($name:literal) => {
        crate::cuda::kernel_file!(Always, $name)
    };
    ($set:ident, $name:literal) => {
        crate::cuda::KernelFile {
            set: crate::cuda::KernelSet::$set,
            name: $name,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name)),
        }
    };
}
pub(crate) use kernel_file;
