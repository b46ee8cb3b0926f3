//! Philox4x32-10 (Salmon et al., 2011): random numbers as a function of a counter and a key.

/// Four random words.
#[inline(always)]
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// A standard normal number as a function of (seed, stream, index): Box and Muller, in f64.
#[inline]
pub fn normal(seed: u64, stream: u64, index: u64) -> f32 {
    let [u, v] = uniform_pair(seed, stream, index);
    ((-2.0 * ln_of_fraction(u)).sqrt() * cos_of_turns(v)) as f32
}

/// The natural logarithm of a normal number between 0 and 1. It is near the library's within 4 units of the last place, and
/// a start of a large model computes billions of them: this takes less than half of the library's time, and is the same on all
/// machines.
#[inline(always)]
fn ln_of_fraction(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let (bits, exponent) = (x.to_bits() & MANTISSA | 1f64.to_bits(), (x.to_bits() >> 52) as i64 - 1023);
    let mantissa = f64::from_bits(bits);
    let is_large = mantissa > std::f64::consts::SQRT_2;
    let mantissa = if is_large { 0.5 * mantissa } else { mantissa };
    // ln m = 2 artanh s, |s| < 0.18: the series of artanh.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let z = s * s;
    let mut series = 1.0 / 23.0;
    for power in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series * z + 1.0 / power;
    }
    (exponent + i64::from(is_large)) as f64 * std::f64::consts::LN_2 + (2.0 * s + 2.0 * s * z * series)
}

/// The cosine of `x` turns of 2 pi, for `x` between 0 and 1. As [`ln_of_fraction`].
#[inline(always)]
fn cos_of_turns(x: f64) -> f64 {
    // Quarters of a turn, and the rest of at most an eighth to either side: the series of cosine and sine.
    let quarter = (4.0 * x + 0.5).floor();
    let rest = (x - 0.25 * quarter) * std::f64::consts::TAU;
    let z = rest * rest;
    let (mut cos, mut sin) = (1.0, 1.0);
    for n in [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        cos = 1.0 - cos * z / ((2.0 * n) * (2.0 * n - 1.0));
        sin = 1.0 - sin * z / ((2.0 * n) * (2.0 * n + 1.0));
    }
    match quarter as i64 & 3 {
        0 => cos,
        1 => -rest * sin,
        2 => -cos,
        _ => rest * sin,
    }
}

/// A number between 0 and 1 as a function of (seed, stream, index).
pub fn uniform(seed: u64, stream: u64, index: u64) -> f32 {
    uniform_pair(seed, stream, index)[0] as f32
}

/// Two independent numbers between 0 and 1, both excluded.
#[inline(always)]
fn uniform_pair(seed: u64, stream: u64, index: u64) -> [f64; 2] {
    let counter = [index as u32, (index >> 32) as u32, stream as u32, (stream >> 32) as u32];
    let words = philox4x32_10(counter, [seed as u32, (seed >> 32) as u32]);
    let uniform = |high: u32, low: u32| ((u64::from(high) << 21 | u64::from(low) >> 11) as f64 + 0.5) / 2f64.powi(53);
    [uniform(words[0], words[1]), uniform(words[2], words[3])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_the_bits_that_the_library_s_functions_give() {
        for index in 0..1_000_000 {
            let [u, v] = uniform_pair(7, 99, index);
            let truth = ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32;
            assert_eq!(normal(7, 99, index).to_bits(), truth.to_bits(), "number {index}");
        }
    }

    #[test]
    fn logarithms_and_cosines_are_near_the_library_s_at_their_ends_too() {
        let near = |ours: f64, truth: f64, unit: f64| assert!((ours - truth).abs() <= 4.0 * unit, "{ours} and {truth}");
        let smallest = 0.5 / 2f64.powi(53);
        let ends =
            [smallest, 1.0 - f64::EPSILON / 2.0, 0.5, std::f64::consts::FRAC_1_SQRT_2, 0.25, 0.125, 0.375, 0.625];
        for x in ends.into_iter().chain((1..1000).map(|i| f64::from(i) / 1000.0)) {
            near(ln_of_fraction(x), x.ln(), x.ln().abs() * f64::EPSILON + smallest);
            // The library's argument is rounded already: by 2 units, as it is up to 2 pi.
            near(cos_of_turns(x), (std::f64::consts::TAU * x).cos(), 2.0 * f64::EPSILON);
        }
    }

    #[test]
    fn philox_gives_the_known_answers_of_random123() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32_10([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let counter = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        let expected = [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1];
        assert_eq!(philox4x32_10(counter, [0xa4093822, 0x299f31d0]), expected);
    }

    #[test]
    fn normal_numbers_have_mean_0_variance_1_and_depend_on_all_arguments() {
        let n = 20_000;
        let values: Vec<f64> = (0..n).map(|i| f64::from(normal(3, 5, i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "mean {mean}, variance {variance}");
        assert_ne!(normal(3, 5, 0), normal(4, 5, 0));
        assert_ne!(normal(3, 5, 0), normal(3, 6, 0));
        assert_ne!(normal(3, 5, 0), normal(3, 5, 1));
    }
}
