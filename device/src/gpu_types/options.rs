//! Choices about a CUDA device.

/// Choices about a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// The number of the GPU among the visible ones.
    pub ordinal: usize,
    /// The same bits from run to run: no timing of algorithms, no atomics.
    pub deterministic: bool,
    /// Compute matrix products of f32 tensors in TF32, a type with a mantissa of 10 bits.
    pub tf32: bool,
    /// Check every operation and launch for races, for reads of overwritten or freed memory, and for reads of memory
    /// that nothing has written. By default on in debug builds.
    pub check: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions { ordinal: 0, deterministic: false, tf32: false, check: cfg!(debug_assertions) }
    }
}
