//! Cross-entropy over a vocabulary that is split across ranks.

use super::super::loss::host::{Exponentials, RowLosses, row_scale, store};
use crate::Float;
use crate::host::parts::{Bound, exp, max, sum, with_bound};
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{CrossEntropyJoin, CrossEntropyPart, VocabPart};

/// The column of a target, if this rank has it.
fn column(part: VocabPart, target: i32, real: usize) -> Option<usize> {
    usize::try_from(target).ok()?.checked_sub(part.first_token).filter(|&column| column < real)
}

impl HostKernel for CrossEntropyPart {
    fn run(&self, pool: &Pool) {
        with_float!(self.logits.dtype, T => with_bound!(self.soft_cap, bound => part_rows::<T>(self, bound, pool)));
    }
}

fn part_rows<T: Float>(op: &CrossEntropyPart, bound: impl Bound, pool: &Pool) {
    let (rows, columns) = (op.logits.shape.rows(), op.logits.shape.last());
    let real = op.part.real(columns);
    let (logits, targets) = (view::read::<T>(&op.logits), view::read::<i32>(&op.targets));
    let results = pool.map(rows, |row| {
        let at = |column: usize| bound.value(logits[row * columns + column].to_f32());
        let highest = max(real, at).max(f32::MIN);
        let total = sum(real, |column| exp(at(column) - highest));
        [highest, total, column(op.part, targets[row], real).map_or(0.0, at)]
    });
    let stats = view::write::<f32>(&op.stats);
    for (row, result) in results.into_iter().enumerate() {
        result.into_iter().enumerate().for_each(|(which, value)| stats[which * rows + row] = value);
    }
}

impl HostKernel for CrossEntropyJoin {
    fn run(&self, pool: &Pool) {
        with_float!(self.logits.dtype, T => with_bound!(self.soft_cap, bound => join_rows::<T>(self, bound, pool)));
    }
}

fn join_rows<T: Float>(op: &CrossEntropyJoin, bound: impl Bound, pool: &Pool) {
    let (rows, columns) = (op.logits.shape.rows(), op.logits.shape.last());
    let real = op.part.real(columns);
    let (targets, stats) = (view::read::<i32>(&op.targets), view::read::<f32>(&op.stats));
    let ranks = stats.len() / (3 * rows).max(1);
    let stat = |rank: usize, which: usize, row: usize| stats[(rank * 3 + which) * rows + row];
    let counts = |row: usize| usize::try_from(targets[row]).is_ok_and(|target| target < op.part.vocab);
    let exponentials = |row: usize| {
        let highest = (0..ranks).map(|rank| stat(rank, 0, row)).fold(f32::MIN, f32::max);
        let sum = (0..ranks).map(|rank| stat(rank, 1, row) * exp(stat(rank, 0, row) - highest)).sum();
        Exponentials { highest, sum }
    };
    let multiplier = op.z_loss.map(|z_loss| z_loss.multiplier);
    let of_row = |row: usize, of: Exponentials| {
        // One rank has the target's logit, the others have 0.
        let at_target: f32 = (0..ranks).map(|rank| stat(rank, 2, row)).sum();
        if counts(row) { of.losses(at_target, multiplier) } else { RowLosses::default() }
    };
    let mut losses = vec![RowLosses::default(); rows];
    let Some(control) = &op.control else {
        pool.for_each_chunk(&mut losses, 1, |row, out| out[0] = of_row(row, exponentials(row)));
        return store(&losses, &op.losses, op.z_loss);
    };
    let scale = row_scale(control, op.weights);
    pool.for_each_chunk_pair((view::write::<T>(&op.logits), columns), (&mut losses, 1), |row, logits, out| {
        let (of, scale) = (exponentials(row), scale(row));
        out[0] = of_row(row, of);
        if !counts(row) {
            return logits.fill(T::from_f32(0.0));
        }
        let target = column(op.part, targets[row], real).map(|target| (target, bound.value(logits[target].to_f32())));
        of.overwrite_by_gradient(&mut logits[..real], bound, scale, multiplier);
        if let Some((target, at_target)) = target {
            let grad = of.gradient_at_target(at_target, scale, multiplier);
            logits[target] = T::from_f32(grad * bound.slope(at_target));
        }
        logits[real..].fill(T::from_f32(0.0));
    });
    store(&losses, &op.losses, op.z_loss);
}
