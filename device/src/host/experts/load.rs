//! The load of experts.

use super::counted::{Counted, first_token};
use crate::host::view;
use crate::ops::{CountLoad, Status, UpdateSelectionBias};

/// See [`CountLoad`].
pub(crate) fn count_load(op: &CountLoad) {
    let (chosen, load) = (view::read::<i32>(&op.chosen), view::write::<f32>(&op.load));
    let (groups, experts) = (op.load.shape.rows(), op.load.shape.last());
    if !op.accumulate {
        load.fill(0.0);
    }
    let (k, tokens) = (op.chosen.shape.last(), op.chosen.shape.rows());
    let counted = Counted::new(op.real.as_ref(), tokens);
    if let Some(positions) = op.position_ids.as_ref().map(view::read::<i32>) {
        for (token, chosen) in chosen.chunks(k).enumerate().filter(|(token, _)| counted.counts(*token)) {
            let of_document = &mut load[first_token(positions, token) * experts..][..experts];
            chosen.iter().for_each(|expert| of_document[*expert as usize] += 1.0);
        }
        return;
    }
    let (mut counts, mut token) = (vec![0u32; experts], 0);
    for (chosen, load) in chosen.chunks((chosen.len() / groups).max(1)).zip(load.chunks_mut(experts)) {
        counts.fill(0);
        for chosen in chosen.chunks(k) {
            if counted.counts(token) {
                chosen.iter().for_each(|expert| counts[*expert as usize] += 1);
            }
            token += 1;
        }
        load.iter_mut().zip(&counts).for_each(|(load, count)| *load += *count as f32);
    }
}

/// See [`UpdateSelectionBias`].
pub(crate) fn update_selection_bias(op: &UpdateSelectionBias) {
    let status: Status = view::read_block(&op.status);
    if status.applies == 0 {
        return;
    }
    let experts = op.load.shape.last();
    let (load, bias) = (view::read::<f32>(&op.load), view::write::<f32>(&op.bias));
    for (load, bias) in load.chunks(experts).zip(bias.chunks_mut(experts)) {
        // Whole numbers: a sum in another order has the same value, and comparing products divides nothing.
        let total: f64 = load.iter().map(|load| f64::from(*load)).sum();
        for (bias, load) in bias.iter_mut().zip(load) {
            let difference = total - f64::from(*load) * experts as f64;
            if difference != 0.0 {
                *bias += op.rate * difference.signum() as f32;
            }
        }
    }
}
