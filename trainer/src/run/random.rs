//! Random inputs for benchmarks and checks.

use device::host::philox;

/// A number in [0, 1), a function of `stream` and `index`.
pub(crate) fn uniform(stream: u64, index: u64) -> f32 {
    let [bits, ..] = philox::philox4x32_10([index as u32, (index >> 32) as u32, stream as u32, 1], [17, 23]);
    (bits >> 8) as f32 / (1u32 << 24) as f32
}
