//! The properties of a GPU, and the reasons for having none.

/// The first compute capability with instructions for 8-bit floating types.
pub const FP8_CAPABILITY: (u32, u32) = (8, 9);

/// The properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProperties {
    /// The GPU's number among the visible GPUs.
    pub ordinal: usize,
    /// The GPU's product name.
    pub name: String,
    /// The GPU's identity in hexadecimal, unique among all GPUs.
    pub uuid: String,
    /// Compute capability, such as `(9, 0)`.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory in total.
    pub memory_bytes: usize,
    /// Shared memory a block may ask for, in bytes.
    pub shared_bytes: u32,
    /// The driver's CUDA version, such as `13000`.
    pub driver_version: i32,
}

impl GpuProperties {
    /// Whether the GPU has the instructions of Hopper. No other GPU has them, older or newer.
    pub fn is_hopper(&self) -> bool {
        self.capability == (9, 0)
    }

    /// The architecture that kernels are compiled for: `sm_90a` on Hopper. Hopper's own instructions need the `a`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if self.is_hopper() { "a" } else { "" })
    }
}

/// Why this process sees no GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoGpu {
    /// The thing that is missing or wrong.
    pub why: String,
    /// The way to repair the missing or wrong thing.
    pub fix: &'static str,
}
