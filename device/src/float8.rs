//! The two 8-bit floating formats of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022).
//!
//! Rounding is to nearest even. Finite numbers beyond the largest one become the largest one. Infinities become NaN, in
//! E5M2 too: an overflow in a gradient then reaches the check that skips the update.

use crate::{DType, Element, Float};

/// 4 bits of exponent, 3 of mantissa: up to 448 in steps of an eighth of a power of two, subnormal below 2^-6. It has no
/// infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// 5 bits of exponent, 2 of mantissa: up to 57344, subnormal below 2^-14.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

/// How a byte is read: sign, exponent with this bias, mantissa with this many bits.
struct Format {
    mantissa: u32,
    bias: i32,
    /// The largest finite number, and its byte.
    largest: (f32, u8),
}

const E4M3: Format = Format { mantissa: 3, bias: 7, largest: (448.0, 0x7e) };
const E5M2: Format = Format { mantissa: 2, bias: 15, largest: (57344.0, 0x7b) };
/// NaN in both formats.
const NAN: u8 = 0x7f;

impl Format {
    fn encode(&self, x: f32) -> u8 {
        let (sign, magnitude) = ((x.to_bits() >> 24) as u8 & 0x80, x.abs());
        let (largest, largest_byte) = self.largest;
        sign | if !magnitude.is_finite() {
            NAN
        } else if magnitude >= largest {
            largest_byte
        } else if magnitude < power_of_two(1 - self.bias) {
            // A multiple of the smallest subnormal. The product is exact.
            (magnitude * power_of_two(self.bias - 1 + self.mantissa as i32)).round_ties_even() as u8
        } else {
            let dropped = 23 - self.mantissa;
            let bits = magnitude.to_bits();
            let odd = (bits >> dropped) & 1;
            let rounded = (bits + (1 << (dropped - 1)) - 1 + odd) >> dropped;
            (rounded - ((127 - self.bias as u32) << self.mantissa)) as u8
        }
    }

    const fn decode(&self, byte: u8) -> f32 {
        let (exponent, mantissa) = ((byte & 0x7f) >> self.mantissa, byte & ((1 << self.mantissa) - 1));
        let magnitude = if byte & 0x7f > self.largest.1 {
            // E5M2 has infinities between its largest number and NaN.
            if self.bias == E5M2.bias && mantissa == 0 { f32::INFINITY } else { f32::NAN }
        } else if exponent == 0 {
            mantissa as f32 * power_of_two(1 - self.bias - self.mantissa as i32)
        } else {
            let fraction = (mantissa as u32) << (23 - self.mantissa);
            f32::from_bits(((exponent as i32 - self.bias + 127) as u32) << 23 | fraction)
        };
        if byte & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The value of each byte.
    const fn values(&self) -> [f32; 256] {
        let mut values = [0.0; 256];
        let mut byte = 0;
        while byte < 256 {
            values[byte] = self.decode(byte as u8);
            byte += 1;
        }
        values
    }
}

/// 2 to an exponent that a normal f32 has.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

static E4M3_VALUES: [f32; 256] = E4M3.values();
static E5M2_VALUES: [f32; 256] = E5M2.values();

impl F8E4M3 {
    /// The largest number.
    pub const LARGEST: f32 = E4M3.largest.0;
}

impl F8E5M2 {
    /// The largest finite number.
    pub const LARGEST: f32 = E5M2.largest.0;
}

impl Element for F8E4M3 {
    const DTYPE: DType = DType::F8E4M3;
}

impl Element for F8E5M2 {
    const DTYPE: DType = DType::F8E5M2;
}

impl Float for F8E4M3 {
    fn to_f32(self) -> f32 {
        E4M3_VALUES[self.0 as usize]
    }

    fn from_f32(x: f32) -> F8E4M3 {
        F8E4M3(E4M3.encode(x))
    }
}

impl Float for F8E5M2 {
    fn to_f32(self) -> f32 {
        E5M2_VALUES[self.0 as usize]
    }

    fn from_f32(x: f32) -> F8E5M2 {
        F8E5M2(E5M2.encode(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By definition: of all finite numbers of the format the nearest one, and of two the one with an even byte.
    fn nearest<T: Float>(x: f32, of: impl Fn(u8) -> T) -> f32 {
        let finite = (0..=255u8).filter(|byte| of(*byte).to_f32().is_finite());
        let distance = |byte: u8| (f64::from(of(byte).to_f32()) - f64::from(x)).abs();
        let best = finite.min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
        of(best.unwrap()).to_f32()
    }

    fn agrees_with_the_definition<T: Float + PartialEq + std::fmt::Debug>(of: fn(u8) -> T, largest: f32) {
        let numbers: Vec<f32> = (0..=255u8).map(|byte| of(byte).to_f32()).filter(|x| x.is_finite()).collect();
        let mut sorted = numbers.clone();
        sorted.sort_by(f32::total_cmp);
        assert_eq!(*sorted.last().unwrap(), largest);
        // All numbers, all midpoints, and the neighbours of both in f32.
        let middles = sorted.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let beside = |x: f32| [x, x.next_up(), x.next_down()];
        for x in numbers.iter().copied().chain(middles).flat_map(beside).chain([0.3, 1e-9, -3e4, 1e9, -1e12]) {
            let rounded = T::from_f32(x).to_f32();
            assert_eq!(rounded, nearest(x, of), "{x:e}");
            assert!(x == 0.0 || rounded == 0.0 || rounded.is_sign_negative() == x.is_sign_negative(), "{x:e}");
        }
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(T::from_f32(x).to_f32().is_nan(), "{x}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_number_and_of_two_to_the_even_one() {
        agrees_with_the_definition(F8E4M3, 448.0);
        agrees_with_the_definition(F8E5M2, 57344.0);
    }

    #[test]
    fn known_bytes() {
        let e4m3: Vec<f32> = [0x00, 0x01, 0x08, 0x38, 0x7e, 0xbc].map(|byte| F8E4M3(byte).to_f32()).into();
        assert_eq!(e4m3, [0.0, 0.001953125, 0.015625, 1.0, 448.0, -1.5]);
        let e5m2: Vec<f32> = [0x01, 0x04, 0x3c, 0x7b, 0x7c, 0xbe].map(|byte| F8E5M2(byte).to_f32()).into();
        assert_eq!(e5m2, [1.5258789e-5, 6.1035156e-5, 1.0, 57344.0, f32::INFINITY, -1.5]);
        assert!(F8E4M3(0x7f).to_f32().is_nan() && F8E5M2(0x7f).to_f32().is_nan());
    }
}
