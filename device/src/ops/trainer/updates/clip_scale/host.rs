//! The factor of gradients, from their norm.

use crate::host::{HostKernel, Pool, view};
use crate::ops::{ClipScale, Control, Status};

impl HostKernel for ClipScale {
    fn run(&self, _pool: &Pool) {
        let control: Control = view::read_block(&self.control);
        let mut status: Status = view::read_block(&self.status);
        let norm = view::read::<f32>(&self.square_sum)[0].sqrt() * control.inverse_loss_scale;
        status.grad_norm = norm;
        status.finite = u32::from(norm.is_finite());
        status.applies = status.finite;
        if norm.is_finite() {
            let clip = if control.clip > 0.0 { (control.clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
            status.grad_factor = clip * control.inverse_loss_scale;
            status.applied += 1;
        } else {
            status.grad_factor = 0.0;
            status.skipped += 1;
        }
        view::write_block(&self.status, &status);
    }
}
