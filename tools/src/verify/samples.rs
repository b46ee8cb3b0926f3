//! Samples of the small model: each is a function of its global number, and of nothing else.

use data::SampleCounts;
use device::HostValues;
use device::ops::PairLoss;
use device::random::uniform;
use engine::model::SampleRow;
use trainer::config::plan::{ModelPlan, RunPlan};

/// The samples of a run.
pub(super) struct Samples {
    row: SampleRow,
    /// 0: samples are features and outputs.
    vocab: usize,
}

impl Samples {
    pub(super) fn of(plan: &RunPlan) -> Samples {
        let vocab = match &plan.model {
            ModelPlan::Gpt(shape) => shape.vocab,
            ModelPlan::Mlp(_) => 0,
        };
        Samples { row: plan.sample_row(), vocab }
    }

    /// The rows of samples from `first` on, of no more than `length` inputs each.
    pub(super) fn batch(&self, first: u64, count: usize, length: Option<usize>) -> HostValues {
        let samples = first..first + count as u64;
        if self.vocab == 0 {
            let row = |sample: u64| (0..self.row.width).map(move |at| 2.0 * uniform(sample, at as u64) - 1.0);
            return HostValues::F32(samples.flat_map(row).collect());
        }
        HostValues::I32(samples.flat_map(|sample| self.tokens(sample, length)).collect())
    }

    /// What samples from `first` on count; `None` if all targets have a loss and each sample is one document.
    pub(super) fn counts(&self, first: u64, count: usize, length: Option<usize>) -> Option<SampleCounts> {
        let of = |sample: u64| {
            let row = self.tokens(sample, length);
            let targets = match &self.row.pairs {
                Some(pairs) => row[pairs.columns.clone()].chunks(PairLoss::COLUMNS).filter(|pair| pair[1] > 0).count(),
                None => row[self.row.targets.clone()].iter().filter(|target| **target >= 0).count(),
            };
            let targets = targets as u64;
            let documents = self.row.documents.as_ref().map_or(1, |documents| {
                row[documents.position_ids.clone()].iter().filter(|position| **position == 0).count() as u64
            });
            SampleCounts { targets, tokens: self.real(sample, length) as u64, documents }
        };
        self.has_targets_apart().then(|| (first..first + count as u64).map(of).sum())
    }

    /// Whether the samples' targets are separate columns.
    fn has_targets_apart(&self) -> bool {
        self.vocab > 0 && self.row.targets.start >= self.row.inputs.end
    }

    /// Inputs that are no padding.
    fn real(&self, sample: u64, length: Option<usize>) -> usize {
        let most = length.unwrap_or(self.row.inputs.len());
        if self.row.real.is_some() || length.is_some() { most - sample as usize % 3 } else { most }
    }

    /// The length of every document of a sample but the last: other samples have others, and some end in the middle of
    /// a rank's tokens.
    fn document(&self, sample: u64) -> usize {
        let most = self.row.documents.as_ref().map_or(1, |documents| documents.most);
        let fewest = self.row.inputs.len().div_ceil(most.saturating_sub(1).max(1));
        fewest.max(3 + sample as usize % 4)
    }

    /// A sample. Mismatched answers are like its own, with other tokens.
    fn tokens(&self, sample: u64, length: Option<usize>) -> Vec<i32> {
        match self.row.mismatched {
            None => self.half(sample, 0, length),
            Some(begin) => [0, begin].map(|first| self.half(sample, first, length)).concat(),
        }
    }

    /// The columns of a sample from `first` on, as many as come before the columns of mismatched answers.
    fn half(&self, sample: u64, first: usize, length: Option<usize>) -> Vec<i32> {
        let SampleRow { width, inputs, targets, documents, pairs, mismatched, real, .. } = &self.row;
        let token = |at: usize| (uniform(sample, (first + at) as u64) * self.vocab as f32) as i32 % self.vocab as i32;
        let mut row: Vec<i32> = (0..mismatched.unwrap_or(*width)).map(token).collect();
        if !self.has_targets_apart() {
            return row;
        }
        let (seq, document, own) = (inputs.len(), self.document(sample), self.real(sample, length));
        for at in 0..seq {
            // An input's target is the next input. The first of a document has no loss, as a question has none.
            let has_loss = at < own && at % document > 0;
            row[targets.start + at] = if has_loss { token(inputs.start + at + 1) } else { -1 };
            if at >= own {
                row[inputs.start + at] = 0;
            }
            if let Some(documents) = documents {
                // The padding is a document.
                let begin = if at < own { at / document * document } else { own };
                row[documents.position_ids.start + at] = (at - begin) as i32;
            }
        }
        if let Some(pairs) = pairs {
            // The documents of a sample, two by two.
            let ends: Vec<usize> = (1..).map(|at| at * document).take_while(|end| *end < own).chain([own]).collect();
            row[pairs.columns.clone()].fill(0);
            let of_pairs = row[pairs.columns.clone()].chunks_mut(PairLoss::COLUMNS);
            let logps = [-5.0f32, -6.0].map(|logp| logp.to_bits() as i32);
            if mismatched.is_some() {
                // Each document is an answer. The first one is undesirable, but not a mismatched one.
                let begins = [0].into_iter().chain(ends.iter().copied());
                for (at, (pair, (begin, end))) in of_pairs.zip(begins.zip(ends.iter().copied())).enumerate() {
                    let is_desirable = at > 0 || first > 0;
                    pair.copy_from_slice(&match is_desirable {
                        true => [end as i32, end as i32, logps[0], 0],
                        false => [begin as i32, end as i32, 0, logps[1]],
                    });
                }
            } else {
                for (pair, ends) in of_pairs.zip(ends.chunks_exact(2)) {
                    pair.copy_from_slice(&[ends[0] as i32, ends[1] as i32, logps[0], logps[1]]);
                }
            }
        }
        if let Some(real) = real {
            row[*real] = own as i32;
        }
        row
    }
}
