//! A step that is run to be compared: what its regions leave is noted while it runs.

use std::collections::BTreeMap;

use device::{Device, Tensor};

use crate::error::Result;

/// A step that is run to be compared.
#[derive(Default)]
pub(crate) struct Trial {
    /// By visit: what to note after the region.
    pub(crate) after: BTreeMap<usize, Vec<Tensor>>,
    /// What to note at the end of the step.
    pub(crate) at_end: Vec<Tensor>,
    /// A digest of each tensor noted so far.
    pub(crate) digests: Vec<u64>,
    /// The number of the tensor whose bytes are kept, counted as in `digests`.
    pub(crate) keeps: Option<usize>,
    pub(crate) kept: Vec<u8>,
}

impl Trial {
    /// Notes what these tensors hold. The work that writes them must have ended.
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

/// A digest of what was digested so far and of more bytes. Two texts that differ in one word never have the same.
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
