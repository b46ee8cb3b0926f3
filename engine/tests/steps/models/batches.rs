//! The samples of small models, each a function of its number.

use device::HostValues;
use device::ops::PairLoss;

use super::{Kind, MICRO_BATCH, MLP_SIZES, SEQ, VOCAB};

/// A fixed pseudo-random number for (sample, position): SplitMix64.
pub fn noise(sample: u64, position: u64) -> u64 {
    let mut z = sample.wrapping_mul(0x9e3779b97f4a7c15).wrapping_add(position.wrapping_mul(0xbf58476d1ce4e5b9)) ^ 1;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    z ^ (z >> 31)
}

/// Samples as a function of their global number.
pub fn batch(kind: Kind, first_sample: u64, microbatches: usize) -> HostValues {
    let samples = first_sample..first_sample + (microbatches * MICRO_BATCH) as u64;
    match kind {
        Kind::Gpt | Kind::Llama => {
            // Every token follows from the one before, so that there is something to learn.
            let token = |s: u64, i: u64| ((noise(s, 0) + 5 * i) % VOCAB as u64) as i32;
            HostValues::I32(samples.flat_map(|s| (0..=SEQ as u64).map(move |i| token(s, i))).collect())
        }
        Kind::Mlp => {
            let value = |s: u64, i: u64| (noise(s, i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            let (features, outputs) = (0..MLP_SIZES[0] as u64, 1000..1000 + MLP_SIZES[3] as u64);
            let row = |s: u64| features.clone().chain(outputs.clone()).map(move |i| value(s, i)).collect::<Vec<f32>>();
            HostValues::F32(samples.flat_map(row).collect())
        }
    }
}

/// The documents of a sample. Together they have as many inputs as a sequence. All tokens but the last are inputs.
pub fn documents(sample: u64) -> Vec<Vec<i32>> {
    const LENGTHS: [&[usize]; 4] = [&[3, 5], &[1, 4, 3], &[SEQ], &[2, 1, 1, 4]];
    let lengths = LENGTHS[noise(sample, 1) as usize % LENGTHS.len()];
    let token = |d: usize, i: u64| ((noise(sample, d as u64) + 5 * i) % VOCAB as u64) as i32;
    lengths.iter().enumerate().map(|(d, &length)| (0..=length as u64).map(|i| token(d, i)).collect()).collect()
}

/// Samples that hold several documents, as a function of their global numbers.
pub fn packed(first_sample: u64, samples: usize) -> HostValues {
    let row = |sample: u64| {
        let all = documents(sample);
        let inputs = all.iter().flat_map(|tokens| tokens[..tokens.len() - 1].to_vec());
        let targets = all.iter().flat_map(|tokens| tokens[1..].to_vec());
        let positions = all.iter().flat_map(|tokens| 0..tokens.len() as i32 - 1);
        inputs.chain(targets).chain(positions).collect::<Vec<i32>>()
    };
    HostValues::I32((first_sample..first_sample + samples as u64).flat_map(row).collect())
}

/// As [`packed`], with the documents of a sample, two by two, as pairs of answers: at most `most`.
pub fn with_pairs(first_sample: u64, samples: usize, most: usize) -> HostValues {
    let HostValues::I32(rows) = packed(first_sample, samples) else { unreachable!("tokens") };
    let row = |(number, row): (usize, &[i32])| {
        let mut end = 0;
        let ends = documents(first_sample + number as u64).into_iter().map(|tokens| {
            end += tokens.len() as i32 - 1;
            end
        });
        let ends: Vec<i32> = ends.collect();
        let logps = [-12.5f32, -13.0].map(|logp| logp.to_bits() as i32);
        let pairs = ends.chunks_exact(2).take(most).flat_map(|ends| [ends[0], ends[1], logps[0], logps[1]]);
        let mut pairs: Vec<i32> = pairs.collect();
        pairs.resize(most * PairLoss::COLUMNS, 0);
        [row, &pairs].concat()
    };
    HostValues::I32(rows.chunks(3 * SEQ).enumerate().flat_map(row).collect())
}

/// Samples with labelled answers, at most `most`: the documents of a sample. The first is undesirable. Behind them are the
/// documents of other samples, as mismatched answers.
pub fn labelled(first_sample: u64, samples: usize, most: usize) -> HostValues {
    let half = |sample: u64, is_mismatched: bool| {
        let HostValues::I32(row) = packed(sample, 1) else { unreachable!("tokens") };
        let (mut pairs, mut begin) = (Vec::new(), 0);
        for tokens in documents(sample).into_iter().take(most) {
            let (end, logp) = (begin + tokens.len() as i32 - 1, if is_mismatched { -24.0f32 } else { -12.5 });
            let logp = logp.to_bits() as i32;
            let is_desirable = begin > 0 || is_mismatched;
            pairs.extend(if is_desirable { [end, end, logp, 0] } else { [begin, end, 0, logp] });
            begin = end;
        }
        pairs.resize(most * PairLoss::COLUMNS, 0);
        [&row[..], &pairs, &[SEQ as i32]].concat()
    };
    let samples = first_sample..first_sample + samples as u64;
    HostValues::I32(samples.flat_map(|sample| [half(sample, false), half(sample + 1000, true)].concat()).collect())
}
