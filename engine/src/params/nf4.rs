//! Frozen weights in 4 bits: NF4 (Dettmers et al., 2023), with the codes and the values of bitsandbytes.

use device::ops::{NF4_BLOCK, NF4_VALUES};
use device::{DType, Device, Result, Tensor, bf16};
use rayon::prelude::*;

/// From the number with index `i` on a value has a code above `i`, as bitsandbytes rounds.
const BORDERS: [f32; 15] = [
    -0.848_096_4,
    -0.610_632_9,
    -0.459_995_27,
    -0.339_679_43,
    -0.234_607_4,
    -0.137_911_73,
    -0.045_525_018,
    0.039_790_15,
    0.120_255_25,
    0.203_521_25,
    0.292_013_77,
    0.389_312_54,
    0.501_663_45,
    0.642_786_9,
    0.861_478_45,
];

/// Values in NF4.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nf4 {
    /// Two codes a byte, the first in the upper half.
    pub codes: Vec<u8>,
    /// The largest magnitude of each block.
    pub scales: Vec<bf16>,
}

impl Nf4 {
    /// Values, rounded to bf16 first as a model is loaded: so bf16 has their largest magnitudes, and to read and write again what
    /// these codes stand for changes nothing. Their number is a multiple of [`NF4_BLOCK`].
    pub fn of(values: &[f32]) -> Nf4 {
        let block = |values: &[f32]| {
            let mut rounded = [0.0; NF4_BLOCK];
            rounded.iter_mut().zip(values).for_each(|(to, x)| *to = bf16::from_f32(*x).to_f32());
            let largest = rounded.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
            let code = |x: f32| BORDERS.partition_point(|border| x * inverse > *border) as u8;
            let codes: [u8; NF4_BLOCK / 2] =
                std::array::from_fn(|at| code(rounded[2 * at]) << 4 | code(rounded[2 * at + 1]));
            (codes, bf16::from_f32(largest))
        };
        let blocks: Vec<_> = values.par_chunks(NF4_BLOCK).map(block).collect();
        Nf4 {
            codes: blocks.iter().flat_map(|(codes, _)| *codes).collect(),
            scales: blocks.iter().map(|(_, scale)| *scale).collect(),
        }
    }

    /// The values that the codes stand for, f32.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; 2 * self.codes.len()];
        values.par_chunks_mut(2).zip(&self.codes).enumerate().for_each(|(at, (pair, byte))| {
            let scale = self.scales[2 * at / NF4_BLOCK].to_f32();
            pair.copy_from_slice(&[byte >> 4, byte & 15].map(|code| NF4_VALUES[usize::from(code)] * scale));
        });
        values
    }
}

/// The memory of values in NF4.
#[derive(Clone, Copy, Debug)]
pub struct Nf4Memory {
    /// Two codes a byte.
    pub codes: Tensor,
    /// One for each [`NF4_BLOCK`] values, bf16.
    pub scales: Tensor,
}

impl Nf4Memory {
    /// The memory of some of the values. Both numbers are multiples of [`NF4_BLOCK`].
    pub fn part(self, first: usize, values: usize) -> Nf4Memory {
        Nf4Memory {
            codes: self.codes.view(first / 2, [values / 2]),
            scales: self.scales.view(first / NF4_BLOCK, [values / NF4_BLOCK]),
        }
    }

    /// Overwrites them all.
    pub(super) fn set(self, device: &Device, values: &[f32]) -> Result<()> {
        let Nf4 { codes, scales } = Nf4::of(values);
        device.upload(&self.codes, &codes)?;
        device.upload(&self.scales, &scales)
    }

    /// The values, as layers read them in this type.
    pub(super) fn values(self, device: &Device, dtype: DType) -> Result<Vec<f32>> {
        let nf4 = Nf4 { codes: device.download(&self.codes)?, scales: device.download(&self.scales)? };
        let mut values = nf4.values();
        if dtype == DType::Bf16 {
            values.par_iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_scales_are_those_of_bitsandbytes() {
        // What quantize_4bit of bitsandbytes 0.50.2 makes of these values: blocks of 64, nf4, no statistics compressed.
        let values: Vec<f32> = (0..128).map(|at| (at * 37 % 101 - 50) as f32 / 64.0).collect();
        let codes = "04c16e29f3b05d17e29f3c05d18e2af4c16e18e3b05d17e29f3b05d18e2af4c16d18e3b04c17e29f3b05d17e2af4c06d18e2a04c16e29f3b05d17e29f3c05d18";
        let nf4 = Nf4::of(&values);
        let hex: String = nf4.codes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((hex.as_str(), &nf4.scales[..]), (codes, &[bf16::from_f32(50.0 / 64.0); 2][..]));
        // Of values that are multiples of codes nothing is lost, and of others no more than once.
        let again = Nf4::of(&nf4.values().iter().map(|x| bf16::from_f32(*x).to_f32()).collect::<Vec<_>>());
        assert_eq!(again, nf4);
        let zeros = Nf4::of(&[0.0; NF4_BLOCK]);
        assert_eq!(zeros.values(), [0.0; NF4_BLOCK]);
    }
}
