//! Losses of pairs of answers.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{PairLoss, Preference};

/// The struct of the same name in `kernels/pair_loss.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct PairLossArgs {
    losses: u64,
    targets: u64,
    pairs: u64,
    references: u64,
    mismatched: u64,
    control: u64,
    results: u64,
    weights: u64,
    tokens: u32,
    most: u32,
    kind: u32,
    beta: f32,
    label_smoothing: f32,
    desirable: f32,
    undesirable: f32,
    padding: u32,
}

/// Values of `kind`.
const DPO: u32 = 0;
const IPO: u32 = 1;
const KTO: u32 = 2;

impl KernelOperation for PairLoss {
    const FILES: &'static [KernelFile] = &[kernel_file!("pair_loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let [samples, tokens, most] = self.sizes();
        let block = PairLossArgs {
            losses: self.losses.address,
            targets: self.targets.address,
            pairs: self.pairs.address,
            references: self.references.map_or(0, |references| references.address),
            mismatched: self.mismatched.map_or(0, |of| of.sum.address),
            control: self.mismatched.map_or(0, |of| of.control.address),
            results: self.results.address,
            weights: self.weights.map_or(0, |weights| weights.address),
            tokens: tokens as u32,
            most: most as u32,
            kind: DPO,
            beta: self.preference.beta(),
            label_smoothing: 0.0,
            desirable: 0.0,
            undesirable: 0.0,
            padding: 0,
        };
        let block = match self.preference {
            Preference::Sigmoid { label_smoothing, .. } => PairLossArgs { label_smoothing, ..block },
            Preference::Ipo { .. } => PairLossArgs { kind: IPO, ..block },
            Preference::Kto { desirable, undesirable, .. } => {
                PairLossArgs { kind: KTO, desirable, undesirable, ..block }
            }
        };
        queue.launch_block("pair_loss", Grid::line(samples * most, 256), &block)
    }
}
