//! Frozen weights that lie as codes of 4 or 8 bits.

use device::ops::{CODE_BLOCK, CodeForm, NF4_VALUES};
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

/// Values as codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Codes {
    /// The form.
    pub form: CodeForm,
    /// See [`CodeForm`].
    pub codes: Vec<u8>,
    /// The largest magnitude of each block.
    pub scales: Vec<bf16>,
}

impl Codes {
    /// Values, rounded to bf16 first as a model is loaded: so bf16 has their largest magnitudes, and to read and write again what
    /// these codes stand for changes nothing. Their number is a multiple of [`CODE_BLOCK`].
    pub fn of(form: CodeForm, values: &[f32]) -> Codes {
        let (mut codes, blocks) = (vec![0; form.bytes(values.len())], values.par_chunks(CODE_BLOCK));
        let block = |(codes, values): (&mut [u8], &[f32])| {
            let mut rounded = [0.0; CODE_BLOCK];
            rounded.iter_mut().zip(values).for_each(|(to, x)| *to = bf16::from_f32(*x).to_f32());
            let largest = rounded.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
            match form {
                CodeForm::Nf4 => {
                    let code = |x: f32| BORDERS.partition_point(|border| x * inverse > *border) as u8;
                    let pairs = rounded.chunks(2).map(|pair| code(pair[0]) << 4 | code(pair[1]));
                    codes.iter_mut().zip(pairs).for_each(|(to, code)| *to = code);
                }
                CodeForm::Int8 => {
                    let code = |x: f32| (x * inverse * 127.0).round_ties_even() as i8 as u8;
                    codes.iter_mut().zip(rounded).for_each(|(to, x)| *to = code(x));
                }
            }
            bf16::from_f32(largest)
        };
        let scales = codes.par_chunks_mut(form.bytes(CODE_BLOCK)).zip(blocks).map(block).collect();
        Codes { form, codes, scales }
    }

    /// The values that the codes stand for, f32.
    pub fn values(&self) -> Vec<f32> {
        let bytes = self.form.bytes(CODE_BLOCK);
        let mut values = vec![0.0; self.scales.len() * CODE_BLOCK];
        let blocks = values.par_chunks_mut(CODE_BLOCK).zip(self.codes.par_chunks(bytes)).zip(&self.scales);
        blocks.for_each(|((values, codes), scale)| {
            let scale = scale.to_f32();
            match self.form {
                CodeForm::Nf4 => {
                    let codes = codes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                    values.iter_mut().zip(codes).for_each(|(to, code)| *to = NF4_VALUES[usize::from(code)] * scale);
                }
                CodeForm::Int8 => {
                    let factor = scale * (1.0 / 127.0);
                    values.iter_mut().zip(codes).for_each(|(to, code)| *to = f32::from(*code as i8) * factor);
                }
            }
        });
        values
    }
}

/// The memory of values that lie as codes.
#[derive(Clone, Copy, Debug)]
pub struct CodeMemory {
    /// The form.
    pub form: CodeForm,
    /// See [`CodeForm`].
    pub codes: Tensor,
    /// The scale of each [`CODE_BLOCK`] values, bf16.
    pub scales: Tensor,
}

impl CodeMemory {
    /// The number of values.
    pub fn elements(&self) -> usize {
        self.scales.elements() * CODE_BLOCK
    }

    /// The memory of some of the values. Both numbers are multiples of [`CODE_BLOCK`].
    pub fn part(self, first: usize, values: usize) -> CodeMemory {
        CodeMemory {
            codes: self.codes.view(self.form.bytes(first), [self.form.bytes(values)]),
            scales: self.scales.view(first / CODE_BLOCK, [values / CODE_BLOCK]),
            ..self
        }
    }

    /// Overwrites them all.
    pub(super) fn set(self, device: &Device, values: &[f32]) -> Result<()> {
        let Codes { codes, scales, .. } = Codes::of(self.form, values);
        device.upload(&self.codes, &codes)?;
        device.upload(&self.scales, &scales)
    }

    /// The values, as layers read them in this type.
    pub(super) fn values(self, device: &Device, dtype: DType) -> Result<Vec<f32>> {
        let CodeMemory { form, codes, scales } = self;
        let mut values = Codes { form, codes: device.download(&codes)?, scales: device.download(&scales)? }.values();
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
        let nf4 = Codes::of(CodeForm::Nf4, &values);
        let hex: String = nf4.codes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((hex.as_str(), &nf4.scales[..]), (codes, &[bf16::from_f32(50.0 / 64.0); 2][..]));
    }

    #[test]
    fn codes_of_the_values_of_codes_are_the_same_in_every_type() {
        let values: Vec<f32> =
            (0..640).map(|at| ((at * 7919 % 1009) as f32 / 500.0 - 1.0) * (at / 64) as f32).collect();
        for form in [CodeForm::Nf4, CodeForm::Int8] {
            let codes = Codes::of(form, &values);
            assert_eq!(Codes::of(form, &codes.values()), codes, "{form:?}");
            let rounded: Vec<f32> = codes.values().iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
            assert_eq!(Codes::of(form, &rounded), codes, "{form:?}");
            assert_eq!(codes.values()[..64], [0.0; 64]);
        }
        let codes = Codes::of(CodeForm::Int8, &values);
        for ((value, near), scale) in values.iter().zip(codes.values()).zip(codes.scales.iter().flat_map(|s| [s; 64])) {
            // Half a code, and the rounding to bf16.
            assert!((value - near).abs() <= scale.to_f32() * (0.5 / 127.0 + 1.0 / 256.0), "{value} as {near}");
        }
    }
}
