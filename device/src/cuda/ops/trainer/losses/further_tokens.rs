//! The tokens that a model predicts beyond the next one.

use crate::Result;
use crate::cuda::kernels::{Arg, KernelFile, kernel_file};
use crate::cuda::ops::shape::over_packs;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::FurtherTokens;

impl KernelOperation for FurtherTokens {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/embedding.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, columns) = (self.tokens.elements(), self.tokens.shape.last());
        let [part, first, second] = self.share.shifts(columns).map(Arg::U32);
        let number = |number: usize| Arg::U32(number as u32);
        queue.launch(
            "further_tokens",
            over_packs(count, queue),
            &[
                self.samples.into(),
                self.position_ids.into(),
                self.tokens.into(),
                self.targets.into(),
                Arg::U64(count as u64),
                number(columns),
                number(self.samples.shape.last()),
                number(self.first_input),
                number(self.first_target),
                number(self.ahead),
                number(self.length()),
                part,
                first,
                second,
            ],
        )
    }
}
