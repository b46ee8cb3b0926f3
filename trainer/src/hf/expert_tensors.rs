//! A tensor of all experts, which has its values in another order than our parameter, or as MXFP4 (Open Compute Project,
//! 2023): numbers of 4 bits, with a power of two for each 32 of them.

use std::ops::Range;

use common::UserError;
use rayon::prelude::*;

use super::names::Entry;
use super::read::{WeightFolder, Whole};

/// Numbers that share a scale.
const BLOCK: usize = 32;

/// The numbers of 4 bits.
const NUMBERS: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The values of blocks of 16 bytes, the lower half of a byte before the upper one.
fn decode(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    let of_block = |(bytes, scale): (&[u8], &u8)| {
        let scale = 2f64.powi(i32::from(*scale) - 127);
        let value = move |bits: u8| (f64::from(NUMBERS[usize::from(bits)]) * scale) as f32;
        bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(value).collect::<Vec<_>>()
    };
    blocks.chunks(BLOCK / 2).zip(scales).flat_map(of_block).collect()
}

/// The blocks and the scales of a tensor.
pub(super) struct Packed<'w> {
    pub(super) blocks: (&'w str, &'w Whole),
    pub(super) scales: (&'w str, &'w Whole),
}

impl WeightFolder {
    /// The tensors that hold the tensor `name` as MXFP4, if the folder lacks `name` as such.
    pub(super) fn packed(&self, name: &str) -> Option<Packed<'_>> {
        if self.find(name).is_some() {
            return None;
        }
        let blocks = self.find(&format!("{name}_blocks"))?;
        Some(Packed { blocks, scales: self.find(&format!("{name}_scales"))? })
    }

    /// Fails unless blocks and scales are those of a parameter.
    ///
    /// # Errors
    /// Names the tensor.
    pub(super) fn check_packed(&self, entry: &Entry, packed: &Packed<'_>) -> Result<(), UserError> {
        let (width, experts) = (entry.width(), entry.layout.experts());
        let scales = vec![experts, entry.shape[0] / experts, width / BLOCK];
        let blocks = [&scales[..], &[BLOCK / 2]].concat();
        for ((name, tensor), wanted) in [(packed.blocks, blocks), (packed.scales, scales)] {
            if tensor.shape != wanted || !width.is_multiple_of(BLOCK) {
                return Err(self.misshapen(name, &tensor.shape, &wanted));
            }
            self.check_bytes(name, tensor)?;
        }
        Ok(())
    }

    /// Some rows of a parameter of all experts.
    ///
    /// # Errors
    /// As [`WeightFolder::rows`].
    pub(super) fn rows_of_experts(&self, entry: &Entry, rows: Range<usize>) -> Result<Vec<f32>, UserError> {
        let (width, each) = (entry.width(), entry.shape[0] / entry.layout.experts());
        let (first, end) = (rows.start / each, rows.end.div_ceil(each));
        let part = &entry.parts[0];
        let packed = self.packed(&part.name);
        packed.iter().try_for_each(|packed| self.check_packed(entry, packed))?;
        let of_expert = |expert: usize| match &packed {
            Some(packed) => {
                let bytes = |(name, tensor): (&str, &Whole)| self.bytes_of(name, tensor, expert..expert + 1);
                let values = decode(&bytes(packed.blocks)?, &bytes(packed.scales)?);
                match values.iter().position(|value| !value.is_finite()) {
                    None => Ok(entry.layout.ordered(&values, each, width)),
                    Some(at) => Err(self.not_finite(packed.scales.0, values[at], expert * each * width + at)),
                }
            }
            None => {
                let (name, tensor) = self.part(entry, part)?;
                Ok(entry.layout.as_ours(self.joined(name, tensor, expert..expert + 1)?, each, width))
            }
        };
        let mut ours = vec![0.0; (end - first) * each * width];
        let read = |(at, values): (usize, &mut [f32])| {
            values.copy_from_slice(&of_expert(first + at)?);
            Ok(())
        };
        let failed = ours.par_chunks_mut(each * width).enumerate().find_map_first(|expert| read(expert).err());
        failed.map_or(Ok(()), Err)?;
        let before = first * each;
        ours.truncate((rows.end - before) * width);
        ours.drain(..(rows.start - before) * width);
        Ok(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_4_bits_have_their_sign_one_bit_of_mantissa_and_the_scale_of_their_block() {
        let mut blocks = vec![0u8; 32];
        (blocks[0], blocks[1], blocks[16]) = (0x71, 0x9f, 0x20);
        let values = decode(&blocks, &[127, 120]);
        assert_eq!(&values[..4], [0.5, 6.0, -6.0, -0.5]);
        assert_eq!(&values[32..34], [0.0, 1.0 / 128.0]);
        assert_eq!((values.len(), values[4]), (64, 0.0));
    }
}
