//! Losses of pairs of answers.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
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

/// See [`PairLoss`].
pub(super) fn pair_loss(op: &PairLoss, queue: &Queue<'_>) -> Result<()> {
    let [samples, tokens, most] = op.sizes();
    let block = PairLossArgs {
        losses: op.losses.address,
        targets: op.targets.address,
        pairs: op.pairs.address,
        results: op.results.address,
        weights: op.weights.map_or(0, |weights| weights.address),
        tokens: tokens as u32,
        most: most as u32,
        beta: op.preference.beta(),
        smoothing: op.preference.smoothing(),
    };
    queue.launch_block("pair_loss", Grid::line(samples * most, 256), &block)
}
