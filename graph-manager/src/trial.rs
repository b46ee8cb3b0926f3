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
        let kept = self.keeps.and_then(|number| tensors.get(number.checked_sub(self.digests.len())?));
        if let Some(tensor) = kept {
            device.look(tensor, |bytes| self.kept.extend(bytes))?;
        }
        self.digests.extend(device.digests(tensors)?);
        Ok(())
    }
}
