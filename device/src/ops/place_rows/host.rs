//! The places of rows that come from all ranks.

use crate::host::{HostKernel, Pool, view};
use crate::ops::PlaceRows;

impl HostKernel for PlaceRows {
    fn run(&self, _pool: &Pool) {
        let (experts, ranks) = (self.places.shape.rows(), self.places.shape.last());
        let (all, places) = (view::read::<i32>(&self.all), view::write::<i32>(&self.places));
        let (offsets, pairs) = (view::write::<i32>(&self.offsets), view::write::<i32>(&self.pairs));
        let bound = pairs.len() as i32;
        let mut next = 0;
        for expert in 0..experts {
            offsets[expert] = next.min(bound);
            for rank in 0..ranks {
                let of = &all[rank * (ranks * experts + 1) + self.rank * experts + expert..];
                places[expert * ranks + rank] = next;
                next += of[1] - of[0];
            }
        }
        offsets[experts] = next.min(bound);
        if let Some(beyond) = &self.beyond {
            view::write::<f32>(beyond)[0] = (next - bound).max(0) as f32;
        }
        (0..).zip(pairs).for_each(|(row, pair)| *pair = if row < next { row } else { -1 - row });
    }
}
