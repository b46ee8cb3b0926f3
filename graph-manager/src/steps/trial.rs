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
    pub(crate) keeps: Keeps,
    /// The bytes that were kept, by tensor.
    pub(crate) kept: Vec<Vec<u8>>,
}

/// The tensors with bytes to keep.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Keeps {
    #[default]
    None,
    /// The tensor of this number, counted as in `digests`.
    One(usize),
    All,
}

impl Trial {
    /// Notes the values of `tensors`. The work that writes them must have ended.
    pub(crate) fn note(&mut self, device: &Device, tensors: &[Tensor]) -> Result<()> {
        for (number, tensor) in (self.digests.len()..).zip(tensors) {
            if self.keeps == Keeps::All || self.keeps == Keeps::One(number) {
                let mut kept = Vec::new();
                device.look(tensor, |bytes| kept.extend(bytes))?;
                self.kept.push(kept);
            }
        }
        self.digests.extend(device.digests(tensors)?);
        Ok(())
    }
}
