//! Steps that make no update because their loss or gradient norm is a spike.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, args, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{SkipStep, VoidStep};

kernel_struct! {
    /// The struct of the same name in `kernels/updates/skip_step.cu`.
    SkipStepArgs {
        u64: loss_sum, history, control, status;
        f32: sigma_factor;
        u32: interval, least, padding;
    }
}

impl KernelOperation for SkipStep {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/skip_step.cu")];

    /// A warp is enough.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = SkipStepArgs {
            loss_sum: self.loss_sum.address,
            history: self.history.address,
            control: self.control.address,
            status: self.status.address,
            sigma_factor: self.sigma_factor,
            interval: self.interval() as u32,
            least: self.least() as u32,
            padding: 0,
        };
        queue.launch_block("skip_step", Grid::line(1, 32), &block)
    }
}

impl KernelOperation for VoidStep {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/skip_step.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        queue.launch("void_step", Grid::line(1, 1), args! { self.beyond, self.status })
    }
}
