//! Sizes and numbers that trials share.

use super::workbench::Workbench;
use crate::Result;
use crate::ops::{Control, DropoutPart, DropoutSite, SampleRecord};

/// Sizes of a trial.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) seq: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) ffn: usize,
    pub(super) vocab: usize,
    pub(super) padded_vocab: usize,
}

impl Sizes {
    pub(super) fn hidden(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(super) fn rows(&self) -> usize {
        self.batch * self.seq
    }
}

pub(super) const CONTROL: Control = Control {
    first_sample: 40,
    step: 7,
    microbatches: 2,
    tokens: 60,
    documents: 9,
    learning_rate: 1e-2,
    clip: 1.0,
    grad_scale: 0.125,
    inverse_loss_scale: 1.0,
};

pub(super) fn site(b: &mut Workbench) -> Result<DropoutSite> {
    let record = b.block(&SampleRecord { first_sample: 41, step: 7, reserved: 0 })?;
    Ok(DropoutSite { rate: 0.1, seed: 99, layer: 3, site: 2, record, part: DropoutPart::default() })
}
