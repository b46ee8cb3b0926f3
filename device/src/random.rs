//! Random inputs for benchmarks and checks.

use crate::philox;

/// A number in [0, 1), a function of `stream` and `index`.
pub fn uniform(stream: u64, index: u64) -> f32 {
    unit(words(stream, index)[0])
}

/// Numbers in [0, 1), a function of `stream`, and with four numbers of each draw.
pub fn uniforms(stream: u64) -> impl Iterator<Item = f32> {
    (0..).flat_map(move |index| words(stream, index)).map(unit)
}

fn words(stream: u64, index: u64) -> [u32; 4] {
    philox::philox4x32_10([index as u32, (index >> 32) as u32, stream as u32, 1], [17, 23])
}

fn unit(bits: u32) -> f32 {
    (bits >> 8) as f32 / (1u32 << 24) as f32
}
