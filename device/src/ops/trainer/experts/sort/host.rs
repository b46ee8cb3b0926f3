//! The order of pairs by expert.

use crate::host::{HostKernel, Pool, view};
use crate::ops::SortByExpert;

impl HostKernel for SortByExpert {
    fn run(&self, _pool: &Pool) {
        let chosen = view::read::<i32>(&self.chosen);
        let offsets = view::write::<i32>(&self.order.offsets);
        let (pairs, rows) = (view::write::<i32>(&self.order.pairs), view::write::<i32>(&self.order.rows));
        let experts = offsets.len() - 1;
        let expert_of = |chosen: &i32| (*chosen as usize).wrapping_sub(self.first).min(experts);
        // The last is for dropped pairs, whose rows begin after all others.
        let mut next = vec![0; experts + 1];
        chosen.iter().for_each(|chosen| next[expert_of(chosen)] += 1);
        let mut first = 0;
        for (offset, next) in offsets.iter_mut().zip(&mut next) {
            *offset = first;
            first += std::mem::replace(next, first);
        }
        for (pair, (chosen, row_of)) in (0..).zip(chosen.iter().zip(rows)) {
            let expert = expert_of(chosen);
            let (is_kept, next) = (expert < experts, &mut next[expert]);
            let row = std::mem::replace(next, *next + 1);
            *row_of = if is_kept { row } else { -1 };
            pairs[row as usize] = if is_kept { pair } else { -1 - pair };
        }
    }
}
