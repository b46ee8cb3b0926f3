//! A bound of the load of experts.

use crate::host::parts::Counted;
use crate::host::{HostKernel, Pool, view};
use crate::ops::{LimitLoad, SampleTokens};

impl HostKernel for LimitLoad {
    fn run(&self, _pool: &Pool) {
        let (chosen, kept) = (view::read::<i32>(&self.chosen), view::write::<i32>(&self.kept));
        let (tokens, k) = (self.chosen.shape.rows(), self.chosen.shape.last());
        let samples = SampleTokens::whole(self.real.map_or(1, |real| real.elements()));
        let counted = Counted::new(self.real.as_ref(), samples, tokens);
        let mut of_experts = vec![Vec::new(); self.experts];
        for (pair, expert) in chosen.iter().enumerate().filter(|(pair, _)| counted.counts(pair / k)) {
            of_experts[*expert as usize].push(pair);
        }
        kept.fill(self.experts as i32);
        for (expert, mut pairs) in of_experts.into_iter().enumerate() {
            if let Some(weights) = self.weights.as_ref().map(view::read::<f32>) {
                let key = |pair: usize| if weights[pair] > 0.0 { weights[pair] } else { 0.0 };
                // The sort is stable: the first of equal ones stay first.
                pairs.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
            }
            pairs.iter().take(self.capacity).for_each(|pair| kept[*pair] = expert as i32);
        }
    }
}
