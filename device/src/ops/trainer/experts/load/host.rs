//! The load of experts.

use crate::host::parts::Counted;
use crate::host::{HostKernel, Pool, view};
use crate::ops::{CountLoad, Status, UpdateSelectionBias};

impl HostKernel for CountLoad {
    fn run(&self, _pool: &Pool) {
        let (chosen, load) = (view::read::<i32>(&self.chosen), view::write::<f32>(&self.load));
        let (groups, experts) = (self.load.shape.rows(), self.load.shape.last());
        if !self.accumulate {
            load.fill(0.0);
        }
        let (k, tokens) = (self.chosen.shape.last(), self.chosen.shape.rows());
        let counted = Counted::new(self.real.as_ref(), self.tokens, tokens);
        if let Some(positions) = self.position_ids.as_ref().map(view::read::<i32>) {
            for (token, chosen) in chosen.chunks(k).enumerate().filter(|(token, _)| counted.counts(*token)) {
                let of_document = &mut load[counted.first_of_document(positions, token) * experts..][..experts];
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
}

impl HostKernel for UpdateSelectionBias {
    fn run(&self, _pool: &Pool) {
        let status: Status = view::read_block(&self.status);
        if status.applies == 0 {
            return;
        }
        let experts = self.load.shape.last();
        let (load, bias) = (view::read::<f32>(&self.load), view::write::<f32>(&self.bias));
        for (load, bias) in load.chunks(experts).zip(bias.chunks_mut(experts)) {
            // Whole numbers: a sum in another order has the same value, and comparing products divides nothing.
            let total: f64 = load.iter().map(|load| f64::from(*load)).sum();
            for (bias, load) in bias.iter_mut().zip(load) {
                let difference = total - f64::from(*load) * experts as f64;
                if difference != 0.0 {
                    *bias += self.rate * difference.signum() as f32;
                }
            }
        }
    }
}
