//! Rows of sequences in another order.

use crate::host::{HostKernel, Pool, view};
use crate::ops::{OrderRows, RowOrder, SequenceShare};

impl HostKernel for OrderRows {
    fn run(&self, pool: &Pool) {
        let [from, to] = self.source_and_target();
        let &[ranks, batch, tokens, width] = self.by_rank.shape.sizes() else { return };
        let bytes = width * from.dtype.size();
        let (input, row_of) = (view::read::<u8>(&from.as_bytes()), |rank: usize, sample: usize, token: usize| {
            let position = SequenceShare { rank, ranks }.position(token, tokens);
            [(rank * batch + sample) * tokens + token, sample * ranks * tokens + position]
        });
        // For each row that is written, the one that is read.
        let mut sources = vec![0; ranks * batch * tokens];
        for at in 0..sources.len() {
            let [by_rank, by_position] = row_of(at / tokens / batch, at / tokens % batch, at % tokens);
            match self.to {
                RowOrder::ByPosition => sources[by_position] = by_rank,
                RowOrder::ByRank => sources[by_rank] = by_position,
            }
        }
        pool.for_each_chunk(view::write::<u8>(&to.as_bytes()), bytes.max(1), |row, out| {
            out.copy_from_slice(&input[sources[row] * bytes..][..bytes]);
        });
    }
}
