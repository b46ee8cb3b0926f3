//! Trains a small GPT on the bytes of a text, with CUDA graphs on:
//!
//! ```text
//! cargo run --release -p engine --example minimal [FILE]
//! ```
//!
//! It runs on the GPU if there is one, else on the host device. Its graphs obey the same rules. Without a file the text
//! is sums such as `17+25=42`. The example uses the engine alone. `trainer` adds configuration, data formats,
//! checkpoints, metrics and the start of many ranks.

use std::error::Error;

use device::cuda::CudaOptions;
use device::ops::Rule;
use device::{Device, HostOptions, HostValues};
use engine::model::{GptShape, Position, gpt};
use engine::optimizer::ParamGroup;
use engine::precision::Precision;
use engine::step::{PendingMetrics, Stage, StageOptions, StepSettings};

/// Tokens of a sample.
const SEQ: usize = 64;
/// Samples of a microbatch: one forward and backward take so many.
const MICRO_BATCH: usize = 8;
/// Microbatches of a step: their gradients are summed before the update.
const MICROBATCHES: usize = 2;
const STEPS: usize = 200;
const LEARNING_RATE: f32 = 3e-3;

fn main() -> Result<(), Box<dyn Error>> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => sums(),
    };
    if text.len() <= SEQ {
        return Err(format!("a sample has {} bytes, the text {}", SEQ + 1, text.len()).into());
    }
    let (device, precision) = device()?;
    let (first, last) = train(&device, precision, &text, STEPS)?;
    println!("the loss fell from {first:.4} to {last:.4}; {:.4} would be a guess among 256 bytes", 256f64.ln());
    Ok(())
}

/// The first GPU and that GPU's fast precision, or the host.
fn device() -> Result<(Device, Precision), device::Error> {
    let options = CudaOptions { ordinal: 0, deterministic: false, tf32: false, check: false };
    match Device::cuda(options) {
        Ok(gpu) => Ok((gpu, Precision::Bf16)),
        Err(reason) => {
            println!("on the host: {reason}");
            Ok((Device::host(HostOptions::default())?, Precision::F32))
        }
    }
}

/// Trains a GPT from its first weights and returns the losses of the first and the last step.
pub fn train(device: &Device, precision: Precision, text: &[u8], steps: usize) -> Result<(f64, f64), Box<dyn Error>> {
    // The model. Its parameters have no memory yet.
    let shape = GptShape {
        layers: 4,
        hidden: 128,
        heads: 4,
        kv_heads: 4,
        ffn: 512,
        vocab: 256,
        padded_vocab: 256,
        max_seq_len: SEQ,
        precision,
        position: Position::Learned { positions: SEQ },
        ..GptShape::default()
    };
    let architecture = gpt(shape);

    // How it is trained: matrices decay, biases and norms do not. Graphs are on by default.
    let adamw = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let options = StageOptions {
        seed: Some(1),
        microbatches: MICROBATCHES,
        micro_batch_size: MICRO_BATCH,
        optimizer: ParamGroup::decay_matrices(adamw, 0.1),
        ..StageOptions::default()
    };

    let mut stage = Stage::new(device, &architecture, options)?;

    let mut losses = Vec::new();
    let mut under_way: Option<PendingMetrics> = None;
    for step in 0..steps {
        let settings = StepSettings {
            step: step as u32,
            microbatches: MICROBATCHES,
            // Dropout is a function of the sample's number.
            first_sample: (step * MICROBATCHES * MICRO_BATCH) as u64,
            learning_rate: learning_rate(step, steps),
            clip: 1.0,
            ..StepSettings::default()
        };
        // Step 0 is recorded, its memory planned, and then run; step 1 captures the graphs; from then on they are launched.
        let pending = stage.train_step(settings, Some(&batch(text, step)))?;
        // The host waits for the previous step only, so the device always has a step to work on.
        if let Some(before) = under_way.replace(pending) {
            losses.push(report(losses.len(), before)?);
        }
    }
    if let Some(last) = under_way {
        losses.push(report(losses.len(), last)?);
    }
    println!("graphs: {}", stage.graphs().report());
    match losses[..] {
        [first, .., last] => Ok((first, last)),
        _ => Err("at least two steps are needed to compare losses".into()),
    }
}

/// Prints a step's numbers once the device has them.
fn report(step: usize, pending: PendingMetrics) -> Result<f64, Box<dyn Error>> {
    let result = pending.wait()?;
    println!("step {step:3}  loss {:.4}  gradient norm {:.3}", result.loss, result.grad_norm);
    Ok(result.loss)
}

/// Linear warm-up over the first tenth, then linear decay to a tenth of the rate.
fn learning_rate(step: usize, steps: usize) -> f32 {
    let (at, warmup) = (step as f32 / steps as f32, 0.1);
    LEARNING_RATE * if at < warmup { (at + 0.01) / (warmup + 0.01) } else { 1.0 - 0.9 * (at - warmup) / (1.0 - warmup) }
}

/// The samples of a step, `(microbatches, batch, seq + 1)`: each token is an input, and the target of the one before. They
/// begin at places of the text that look random and are the same in every run.
fn batch(text: &[u8], step: usize) -> HostValues {
    let mut tokens = Vec::with_capacity(MICROBATCHES * MICRO_BATCH * (SEQ + 1));
    for sample in 0..MICROBATCHES * MICRO_BATCH {
        let number = (step * MICROBATCHES * MICRO_BATCH + sample) as u64;
        let start = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % (text.len() - SEQ);
        tokens.extend(text[start..=start + SEQ].iter().map(|&byte| i32::from(byte)));
    }
    HostValues::I32(tokens.into())
}

/// Sums of numbers below 100, one a line.
pub fn sums() -> Vec<u8> {
    let line = |number: u32| {
        let (a, b) = (number * 37 % 100, number * 71 / 100 % 100);
        format!("{a}+{b}={}\n", a + b)
    };
    (0..10_000).map(line).collect::<String>().into_bytes()
}
