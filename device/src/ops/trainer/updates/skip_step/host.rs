//! Steps that make no update because their loss or gradient norm is a spike.

use crate::host::{HostKernel, Pool, view};
use crate::ops::{Control, SkipStep, Status, VoidStep};

impl HostKernel for SkipStep {
    fn run(&self, _pool: &Pool) {
        let control: Control = view::read_block(&self.control);
        let mut status: Status = view::read_block(&self.status);
        let interval = self.interval();
        let recorded = status.recorded as usize;
        let history = view::write::<f32>(&self.history);
        let loss = view::read::<f32>(&self.loss_sum)[0] * control.grad_scale * control.inverse_loss_scale;
        if status.finite == 0 || !loss.is_finite() {
            return;
        }
        let (losses, norms) = history.split_at_mut(interval);
        let known = recorded.min(interval);
        let is_spike = |value: f32, ring: &[f32]| {
            let values = || (recorded - known..recorded).map(|step| f64::from(ring[step % interval]));
            let mean = values().sum::<f64>() / known as f64;
            let variance = values().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (known - 1) as f64;
            f64::from(value) - mean > f64::from(self.sigma_factor) * variance.sqrt()
        };
        if known >= self.least() && (is_spike(loss, losses) || is_spike(status.grad_norm, norms)) {
            status.applies = 0;
            status.applied -= 1;
            status.spikes += 1;
        }
        losses[recorded % interval] = loss;
        norms[recorded % interval] = status.grad_norm;
        status.recorded += 1;
        view::write_block(&self.status, &status);
    }
}

impl HostKernel for VoidStep {
    fn run(&self, _pool: &Pool) {
        let mut status: Status = view::read_block(&self.status);
        if view::read::<f32>(&self.beyond)[0] > 0.0 {
            status.applied -= status.finite;
            status.skipped -= 1 - status.finite;
            (status.finite, status.applies, status.grad_factor) = (0, 0, 0.0);
            view::write_block(&self.status, &status);
        }
    }
}
