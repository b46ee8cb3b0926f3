//! The rows that ranks with other experts exchange.

use crate::host::view;
use crate::ops::{ExpertsOfSlots, SlotsOfPairs};

/// See [`SlotsOfPairs`].
pub(crate) fn slots_of_pairs(op: &SlotsOfPairs) {
    let (chosen, rows) = (view::read::<i32>(&op.chosen), view::read::<i32>(&op.order.rows));
    let (offsets, slots) = (view::read::<i32>(&op.order.offsets), view::write::<i32>(&op.slots));
    let of_rank = (offsets.len() - 1) / op.ranks;
    for ((slot, expert), row) in slots.iter_mut().zip(chosen).zip(rows) {
        let rank = *expert as usize / of_rank;
        *slot = match *row {
            ..0 => -1,
            row => {
                let at = (row - offsets[rank * of_rank]) as usize;
                if at < op.room { (rank * op.room + at) as i32 } else { -1 }
            }
        };
    }
    if let Some(beyond) = &op.beyond {
        let of_ranks = offsets.windows(of_rank + 1).step_by(of_rank).map(|of| (of[of_rank] - of[0]) as usize);
        view::write::<f32>(beyond)[0] = of_ranks.map(|rows| rows.saturating_sub(op.room)).sum::<usize>() as f32;
    }
}

/// See [`ExpertsOfSlots`].
pub(crate) fn experts_of_slots(op: &ExpertsOfSlots) {
    let (experts, room) = (op.experts(), op.room());
    let offsets = view::read::<i32>(&op.offsets);
    let blocks = view::write::<i32>(&op.chosen).chunks_mut(room);
    for (chosen, offsets) in blocks.zip(offsets.chunks(op.offsets.shape.last())) {
        let offsets = &offsets[op.rank * experts..][..=experts];
        for (slot, chosen) in (offsets[0]..).zip(chosen) {
            *chosen = offsets[1..].iter().filter(|end| **end <= slot).count() as i32;
        }
    }
}
