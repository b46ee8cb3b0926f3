//! A bound of the load of experts.

use super::counted::Counted;
use crate::host::view;
use crate::ops::LimitLoad;

/// See [`LimitLoad`].
pub(crate) fn limit_load(op: &LimitLoad) {
    let (chosen, kept) = (view::read::<i32>(&op.chosen), view::write::<i32>(&op.kept));
    let (tokens, k) = (op.chosen.shape.rows(), op.chosen.shape.last());
    let counted = Counted::new(op.real.as_ref(), tokens);
    let mut of_experts = vec![Vec::new(); op.experts];
    for (pair, expert) in chosen.iter().enumerate().filter(|(pair, _)| counted.counts(pair / k)) {
        of_experts[*expert as usize].push(pair);
    }
    kept.fill(op.experts as i32);
    for (expert, mut pairs) in of_experts.into_iter().enumerate() {
        if let Some(weights) = op.weights.as_ref().map(view::read::<f32>) {
            let key = |pair: usize| if weights[pair] > 0.0 { weights[pair] } else { 0.0 };
            // The sort is stable: the first of equal ones stay first.
            pairs.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
        }
        pairs.iter().take(op.capacity).for_each(|pair| kept[*pair] = expert as i32);
    }
}
