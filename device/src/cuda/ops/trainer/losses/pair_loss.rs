//! Losses of pairs of answers.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{PairLoss, Preference};

kernel_struct! {
    /// The struct of the same name in `kernels/losses/pair_loss.cu`; 0 is the null pointer.
    PairLossArgs {
        u64: losses, targets, pairs, references, mismatched, control, results, weights;
        u32: tokens, most, kind;
        f32: beta, label_smoothing, desirable, undesirable;
        u32: padding;
    }
}

/// Values of `kind`.
const DPO: u32 = 0;
const IPO: u32 = 1;
const KTO: u32 = 2;

impl KernelOperation for PairLoss {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/pair_loss.cu")];

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
