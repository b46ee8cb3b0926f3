//! The masks of dropout, from random words.

use crate::host::view;
use crate::ops::{DropoutSite, SampleRecord};
use crate::philox::philox4x32_10;

/// The masks of one dropout, for the step and samples in its record.
#[derive(Clone, Copy)]
pub(crate) struct DropoutMask {
    key: [u32; 2],
    step: u32,
    first_sample: u32,
    /// Words below are dropped.
    threshold: u32,
    pub(crate) first_head: usize,
    /// `1 / (1 - rate)`.
    pub(crate) scale: f32,
}

impl DropoutMask {
    pub(crate) fn new(site: &DropoutSite) -> DropoutMask {
        let record: SampleRecord = view::read_block(&site.record);
        DropoutMask {
            key: site.key(),
            step: record.step,
            first_sample: record.first_sample as u32,
            first_head: site.part.first_head,
            threshold: site.threshold(),
            scale: site.keep_scale(),
        }
    }

    /// Calls `f(i, factor)` for the channels `start + i` of `0..count`: the factor is `scale` or 0.
    #[inline(always)]
    pub(crate) fn for_each(
        &self,
        sample: usize,
        token: usize,
        start: usize,
        count: usize,
        mut f: impl FnMut(usize, f32),
    ) {
        let sample = self.first_sample.wrapping_add(sample as u32);
        let end = start + count;
        let mut channel = start / 4 * 4;
        while channel < end {
            let words = philox4x32_10([channel as u32 / 4, token as u32, sample, self.step], self.key);
            for (i, word) in words.into_iter().enumerate() {
                let at = channel + i;
                if (start..end).contains(&at) {
                    f(at - start, if word >= self.threshold { self.scale } else { 0.0 });
                }
            }
            channel += 4;
        }
    }
}
