//! Names for stretches of the host's time: NVTX ranges, which NVIDIA's profilers show on the host's row.

use std::marker::PhantomData;

/// The environment variable with the library that gets the ranges. A profiler sets it for the programs that it starts.
const LIBRARY: &str = "NVTX_INJECTION64_PATH";

/// A range of the host's time. It begins when it is made and ends when it is dropped. Ranges of a thread nest: the last to
/// begin ends first.
#[must_use = "a range ends when it is dropped"]
pub struct NvtxRange(PhantomData<*const ()>);

impl NvtxRange {
    pub(crate) fn new(name: &str) -> NvtxRange {
        // NVTX takes strings of C.
        nvtx::range_push!("{}", name.replace('\0', " "));
        NvtxRange(PhantomData)
    }
}

impl Drop for NvtxRange {
    fn drop(&mut self) {
        nvtx::range_pop!();
    }
}

/// Whether a profiler of NVIDIA, such as `nsys`, started this program and takes NVTX ranges.
pub fn is_under_profiler() -> bool {
    std::env::var_os(LIBRARY).is_some()
}
