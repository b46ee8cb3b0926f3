//! A step that is run for a comparison: the results of its regions are noted while it runs.

use std::collections::BTreeMap;

use device::{Device, Tensor};

use crate::error::Result;

/// A step that is run for a comparison.
#[derive(Default)]
pub(crate) struct Trial {
    /// By visit: the tensors to note after the region.
    pub(crate) after: BTreeMap<usize, Vec<Tensor>>,
    /// The tensors to note at the end of the step.
    pub(crate) at_end: Vec<Tensor>,
    /// A digest of each tensor noted so far.
    pub(crate) digests: Vec<u64>,
    /// The number of the tensor with bytes to keep, counted as in `digests`.
    pub(crate) keeps: Option<usize>,
    pub(crate) kept: Vec<u8>,
}

impl Trial {
    /// Notes the values of these tensors. The work that writes them must have ended.
    pub(crate) fn note(&mut self, device: &Device, tensors: &[Tensor]) -> Result<()> {
        for tensor in tensors {
            let mut digest = 0;
            let keep = self.keeps == Some(self.digests.len());
            device.look(tensor, |bytes| {
                digest = digest_of(digest, bytes);
                if keep {
                    self.kept.extend(bytes);
                }
            })?;
            self.digests.push(digest);
        }
        Ok(())
    }
}

/// Adds bytes to a digest. Tensors that differ in only one word of 8 bytes never have the same digest.
fn digest_of(mut digest: u64, bytes: &[u8]) -> u64 {
    let mut add = |word: u64| {
        digest = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        digest ^= digest >> 32;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| add(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(u64::from_le_bytes(last));
    digest
}
