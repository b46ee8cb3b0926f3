//! Losses of pairs of answers.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::PairLoss;

/// The struct of the same name in `kernels/pair_loss.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct PairLossArgs {
    losses: u64,
    targets: u64,
    pairs: u64,
    results: u64,
    weights: u64,
    tokens: u32,
    most: u32,
    beta: f32,
    smoothing: f32,
}

impl KernelOperation for PairLoss {
    const FILES: &'static [KernelFile] = &[kernel_file!("pair_loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let [samples, tokens, most] = self.sizes();
        let block = PairLossArgs {
            losses: self.losses.address,
            targets: self.targets.address,
            pairs: self.pairs.address,
            results: self.results.address,
            weights: self.weights.map_or(0, |weights| weights.address),
            tokens: tokens as u32,
            most: most as u32,
            beta: self.preference.beta(),
            smoothing: self.preference.smoothing(),
        };
        queue.launch_block("pair_loss", Grid::line(samples * most, 256), &block)
    }
}
