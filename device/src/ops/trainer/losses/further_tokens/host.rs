//! The tokens that a model predicts beyond the next one.

use crate::host::{HostKernel, Pool, view};
use crate::ops::FurtherTokens;

impl HostKernel for FurtherTokens {
    fn run(&self, pool: &Pool) {
        let FurtherTokens { first_input, first_target, ahead, share, .. } = *self;
        let (width, columns, length) = (self.samples.shape.last(), self.tokens.shape.last(), self.length());
        let samples = view::read::<i32>(&self.samples);
        let ids = self.position_ids.as_ref().map(view::read::<i32>);
        let outputs = [&self.tokens, &self.targets].map(view::write::<i32>);
        let [tokens, targets] = outputs.map(|output| (output, columns.max(1)));
        pool.for_each_chunk_pair(tokens, targets, |row, tokens, targets| {
            let sample = &samples[row * width..][..width];
            let ids = ids.map(|ids| &ids[row * length..][..length]);
            for (column, (token, target)) in tokens.iter_mut().zip(targets).enumerate() {
                let position = share.position(column, columns);
                let further = position + ahead;
                let is_same = |ids: &[i32]| ids[further] == ids[position] + ahead as i32;
                (*token, *target) = match further < length {
                    true if ids.is_none_or(is_same) => (sample[first_input + further], sample[first_target + further]),
                    true => (sample[first_input + further], -1),
                    false => (0, -1),
                };
            }
        });
    }
}
