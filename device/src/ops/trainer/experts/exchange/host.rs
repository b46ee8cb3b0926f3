//! The rows that ranks with other experts exchange.

use crate::host::{HostKernel, Pool, view};
use crate::ops::{ExpertsOfSlots, SlotsOfPairs};

impl HostKernel for SlotsOfPairs {
    fn run(&self, _pool: &Pool) {
        let (chosen, rows) = (view::read::<i32>(&self.chosen), view::read::<i32>(&self.order.rows));
        let (offsets, slots) = (view::read::<i32>(&self.order.offsets), view::write::<i32>(&self.slots));
        let of_rank = (offsets.len() - 1) / self.ranks;
        for ((slot, expert), row) in slots.iter_mut().zip(chosen).zip(rows) {
            let rank = *expert as usize / of_rank;
            *slot = match *row {
                ..0 => -1,
                row => {
                    let at = (row - offsets[rank * of_rank]) as usize;
                    if at < self.room { (rank * self.room + at) as i32 } else { -1 }
                }
            };
        }
        if let Some(beyond) = &self.beyond {
            let of_ranks = offsets.windows(of_rank + 1).step_by(of_rank).map(|of| (of[of_rank] - of[0]) as usize);
            view::write::<f32>(beyond)[0] = of_ranks.map(|rows| rows.saturating_sub(self.room)).sum::<usize>() as f32;
        }
    }
}

impl HostKernel for ExpertsOfSlots {
    fn run(&self, _pool: &Pool) {
        let (experts, room) = (self.experts(), self.room());
        let offsets = view::read::<i32>(&self.offsets);
        let blocks = view::write::<i32>(&self.chosen).chunks_mut(room);
        for (chosen, offsets) in blocks.zip(offsets.chunks(self.offsets.shape.last())) {
            let offsets = &offsets[self.rank * experts..][..=experts];
            for (slot, chosen) in (offsets[0]..).zip(chosen) {
                *chosen = offsets[1..].iter().filter(|end| **end <= slot).count() as i32;
            }
        }
    }
}
