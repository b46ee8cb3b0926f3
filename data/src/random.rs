//! Random numbers as a function of a seed and a position: nothing is stored, and any position can be asked for.

/// The `n`-th random word of a seed: SplitMix64 (Steele et al., 2014).
pub(crate) fn word(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The same as a number in [0, 1).
pub(crate) fn uniform(seed: u64, n: u64) -> f64 {
    (word(seed, n) >> 11) as f64 / (1u64 << 53) as f64
}
