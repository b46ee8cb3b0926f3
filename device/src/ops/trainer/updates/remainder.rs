//! A master weight in two halves: the bf16 weight that layers read, and the 16 bits that it lacks.

use half::bf16;

/// The weight nearest to a master weight, with ties away from 0, and the remainder: the lower 16 bits of the master, whose
/// highest one tells that the weight was rounded away from 0. Both together are the master, see [`join_master`]. NaN becomes
/// a NaN.
#[must_use]
pub fn split_master(master: f32) -> (bf16, u16) {
    if master.is_nan() {
        return (bf16::NAN, 0);
    }
    let bits = master.to_bits();
    // Half of the last place is added: a carry goes to the next magnitude.
    (bf16::from_bits((bits.wrapping_add(0x8000) >> 16) as u16), bits as u16)
}

/// The master weight of a weight and a remainder.
#[must_use]
pub fn join_master(weight: bf16, remainder: u16) -> f32 {
    let remainder = i32::from(remainder as i16);
    f32::from_bits((u32::from(weight.to_bits()) << 16).wrapping_add_signed(remainder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_master_comes_back_and_its_weight_is_the_nearest_with_ties_away_from_zero() {
        // All exponents and signs; mantissas around those of bf16, and around the middle between two.
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let master = f32::from_bits(u32::from(upper) << 16 | lower);
                let (weight, remainder) = split_master(master);
                let back = join_master(weight, remainder);
                if master.is_nan() {
                    assert!(weight.is_nan() && back.is_nan());
                    continue;
                }
                assert_eq!(back.to_bits(), master.to_bits());
                if weight.is_infinite() {
                    assert!(master.is_infinite() || master.abs() >= 3.396e38, "{master}");
                    continue;
                }
                let off = |bits: u16| (f64::from(bf16::from_bits(bits).to_f32()) - f64::from(master)).abs();
                let (here, bits) = (off(weight.to_bits()), weight.to_bits());
                if weight.to_f32().abs() < master.abs() {
                    assert!(here < off(bits + 1), "{master}: the weight above is as near");
                } else if bits & 0x7fff != 0 {
                    assert!(here <= off(bits - 1), "{master}: the weight below is nearer");
                }
            }
        }
    }
}
