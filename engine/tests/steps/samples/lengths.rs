//! Steps on samples of several lengths: a step with short samples computes less, and the same.

use device::HostValues;
use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::{GptShape, Position, SampleRow};
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step::{Stage, StepResult, StepSettings};
use graph_manager::{EagerMemory, Verification, Verified};
use parallel::Axis;

use crate::experts::tiny_experts;
use crate::models::{Kind, Run, SEQ, VOCAB, all_settings, noise, off, tiny_gemma3, tiny_gpt, tiny_llama, tiny_qwen3};

/// The lengths of a model, beside its own.
const SHORTER: [usize; 2] = [4, 6];

/// The length of a run's step: each comes several times.
fn length(run: &Run, step: usize) -> Option<usize> {
    let (first, last) = (run.shorter.first().copied(), run.shorter.last().copied());
    [None, first, last, first][step % 4]
}

/// Tokens of a sample that are no padding, in a step of that length.
fn real(sample: u64, length: Option<usize>) -> usize {
    1 + noise(sample, 3) as usize % length.unwrap_or(SEQ)
}

/// Inputs, targets, and the number of inputs that are no padding.
fn row(sample: u64, length: Option<usize>) -> Vec<i32> {
    let real = real(sample, length);
    let token = |at: usize| ((noise(sample, 0) + 5 * at as u64) % VOCAB as u64) as i32;
    let inputs = (0..SEQ).map(|at| if at < real { token(at) } else { 9 });
    // Not all tokens are targets.
    let targets = (0..SEQ).map(|at| if at < real && (at + 1 == real || at % 3 > 0) { token(at + 1) } else { -1 });
    inputs.chain(targets).chain([real as i32]).collect()
}

/// This rank's samples of a step and its settings, on samples of its length or of the model's.
fn step(run: &Run, step: usize, shortens: bool) -> (StepSettings, HostValues) {
    let settings = run.settings(step);
    let (length, samples) = (length(run, step), (run.microbatches * run.micro_batch_size) as u64);
    let ranks = run.ranks.at(Axis::Data).count as u64;
    let all = step as u64 * ranks * samples..(step as u64 + 1) * ranks * samples;
    let is_target = |row: Vec<i32>| row[SEQ..2 * SEQ].iter().filter(|target| **target >= 0).count() as u64;
    let targets = Some(all.clone().map(|sample| is_target(row(sample, length))).sum());
    let tokens = Some(all.map(|sample| real(sample, length) as u64).sum());
    let rows = (settings.first_sample..settings.first_sample + samples).flat_map(|sample| row(sample, length));
    (StepSettings { targets, tokens, length: length.filter(|_| shortens), ..settings }, HostValues::I32(rows.collect()))
}

fn run(shape: &GptShape, microbatches: usize, graphs: GraphOptions) -> Run {
    let row = SampleRow::conversations(SEQ).with_padding();
    let (shape, row, precision) = (Some(shape.clone()), Some(row), shape.precision);
    let shorter = SHORTER.to_vec();
    Run {
        shape,
        row,
        shorter,
        precision,
        steps: 12,
        learning_rate: 1e-3,
        ..Run::new(Kind::Llama, microbatches, graphs)
    }
}

/// Trains, with an evaluation of the same samples before each step.
fn train_stage(run: &Run, stage: &mut Stage, shortens: bool) -> Vec<(f64, StepResult)> {
    let each = |number| {
        let (settings, batch) = step(run, number, shortens);
        let batch = stage.needs_batch().then_some(&batch);
        let evaluated = stage.evaluate(settings, batch).unwrap().wait().unwrap().loss;
        (evaluated, stage.train_step(settings, batch).unwrap().wait().unwrap())
    };
    (0..run.steps).map(each).collect()
}

fn train(run: &Run, shortens: bool) -> Vec<(f64, StepResult)> {
    let device = run.device();
    let mut stage = run.stage(&device);
    if run.rehearses {
        stage.record(run.microbatches, true).unwrap();
        stage.rehearse(&[run.microbatches], true).unwrap();
    }
    train_stage(run, &mut stage, shortens)
}

/// Learned positions, rotary positions, norms of heads and a window, windows with other frequencies, experts.
fn shapes(precision: Precision) -> [(&'static str, GptShape); 5] {
    [
        ("GPT", tiny_gpt(0.0, precision)),
        ("Llama", tiny_llama(0.0, precision)),
        ("Qwen3", tiny_qwen3(0.0, precision)),
        ("Gemma 3", tiny_gemma3(0.0, precision)),
        ("experts", GptShape { hidden_dropout: 0.0, attention_dropout: 0.0, ..tiny_experts(precision) }),
    ]
}

/// Fails unless both have the same losses and norms within rounding.
fn assert_close(name: &str, ours: &[(f64, StepResult)], theirs: &[(f64, StepResult)], tolerance: f64) {
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < tolerance;
    for (step, ((evaluated, ours), (evaluated_too, theirs))) in ours.iter().zip(theirs).enumerate() {
        let norms = close(ours.grad_norm.into(), theirs.grad_norm.into());
        let added = ours.added.iter().zip(&theirs.added).all(|((_, a), (_, b))| close(*a, *b));
        assert!(
            close(ours.loss, theirs.loss) && close(*evaluated, *evaluated_too) && norms && added,
            "{name}, step {step}: {evaluated}, {ours:?} and {evaluated_too}, {theirs:?}"
        );
        assert_eq!(ours.expert_loads, theirs.expert_loads, "{name}, step {step}");
    }
}

#[test]
fn short_steps_have_the_losses_and_gradients_of_steps_of_the_whole_length() {
    for (name, shape) in shapes(Precision::F32) {
        let run = run(&shape, 2, off());
        assert_close(name, &train(&run, true), &train(&run, false), 1e-5);
        let full = Run { recompute: Some(2), ..self::run(&shape, 2, off()) };
        assert_eq!(train(&full, true), train(&run, true), "{name}, recomputed");
    }
}

#[test]
fn every_graph_setting_has_the_bits_of_graphs_off_whatever_lengths_come() {
    for (name, shape) in shapes(Precision::F32) {
        let dropping = match shape.experts {
            None => GptShape { hidden_dropout: 0.1, attention_dropout: 0.1, ..shape },
            Some(_) => shape,
        };
        let plain = train(&run(&dropping, 3, off()), true);
        for (setting, options) in all_settings() {
            assert_eq!(train(&run(&dropping, 3, options), true), plain, "{name}, {setting}");
        }
        let rehearsed = Run { rehearses: true, ..run(&dropping, 3, GraphOptions::default()) };
        assert_eq!(train(&rehearsed, true), plain, "{name}, rehearsed");
    }
}

#[test]
fn eight_bit_steps_have_the_bits_of_graphs_off_and_measured_ones_too() {
    for (recipe, format) in [(Fp8Recipe::Delayed, Fp8Format::Hybrid), (Fp8Recipe::Blockwise, Fp8Format::E4m3)] {
        // Sizes of 8-bit products are multiples of 16: four samples of four tokens.
        let fp8 = Some(Fp8 { recipe, format, amax_history: 4, ..Fp8::default() });
        let shape = GptShape { fp8, ..tiny_llama(0.1, Precision::Bf16) };
        let train = |graphs| {
            let run = Run { micro_batch_size: 4, shorter: vec![4], ..run(&shape, 2, graphs) };
            let device = run.device();
            let mut stage = run.stage(&device);
            let each = |number: usize| {
                let (settings, batch) = step(&run, number, true);
                match number % 3 {
                    2 => stage.measured_step(settings, Some(&batch)).unwrap().0.wait().unwrap(),
                    _ => stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap(),
                }
            };
            (0..run.steps).map(each).collect::<Vec<StepResult>>()
        };
        let plain = train(off());
        assert!(plain.iter().all(|step| step.loss.is_finite()) && plain[5].fp8.is_some(), "{plain:?}");
        for (setting, options) in all_settings() {
            assert_eq!(train(options), plain, "{recipe}, {setting}");
        }
    }
}

#[test]
fn a_model_for_longer_samples_has_the_losses_of_one_for_these() {
    for (name, shape) in shapes(Precision::F32) {
        let max_seq_len = 2 * SEQ;
        let position = match shape.position {
            Position::Learned { .. } => Position::Learned { positions: max_seq_len },
            other => other,
        };
        let longer = GptShape { max_seq_len, position, ..shape.clone() };
        assert_close(name, &train(&run(&longer, 2, off()), true), &train(&run(&shape, 2, off()), true), 1e-5);
    }
}

#[test]
fn a_step_of_each_length_is_verified() {
    let shape = tiny_gpt(0.1, Precision::F32);
    for (scope, memory) in [(Scope::PerLayer, EagerMemory::Apart), (Scope::FullIteration, EagerMemory::Shared)] {
        let run = run(&shape, 2, GraphOptions { scope, ..GraphOptions::default() });
        let device = run.device();
        let mut stage = run.stage(&device);
        for number in 0..run.steps {
            let (settings, batch) = step(&run, number, true);
            let how = Verification { memory, ..Verification::default() };
            let found = stage.verify_step(Mode::Train, settings, Some(&batch), &how).unwrap();
            let kind = stage.kind(Mode::Train, settings.length).unwrap();
            let settled = stage.graphs().is_settled(kind, run.microbatches);
            match found {
                Verified::NotYet => assert!(!settled, "{scope:?}, step {number} was not verified"),
                Verified::Same { tensors, .. } => assert!(tensors > 10, "{scope:?}, step {number}"),
                Verified::Differs(difference) => panic!("{scope:?}, step {number}: {difference}"),
            }
            stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap();
        }
    }
}

#[test]
fn lengths_share_memory_and_a_step_of_one_allocates_nothing() {
    let shape = tiny_llama(0.0, Precision::F32);
    let bytes = |shorter: &[usize]| {
        let run = Run { shorter: shorter.to_vec(), ..run(&shape, 2, GraphOptions::default()) };
        let device = run.device();
        let mut stage = run.stage(&device);
        stage.record(run.microbatches, true).unwrap();
        stage.graphs().allocate().unwrap();
        let bytes = device.allocated_bytes();
        if !shorter.is_empty() {
            train_stage(&run, &mut stage, true);
            assert_eq!(device.allocated_bytes(), bytes);
        }
        bytes
    };
    assert_eq!(bytes(&SHORTER), bytes(&[]));
}

#[test]
fn what_comes_after_a_steps_length_is_not_read() {
    for (name, shape) in shapes(Precision::F32) {
        let run = run(&shape, 2, off());
        let mut stage = run.stage(&run.device());
        let (settings, batch) = step(&run, 0, true);
        let HostValues::I32(values) = &batch else { unreachable!("tokens") };
        let mut other = values.to_vec();
        for row in other.chunks_mut(2 * SEQ + 1) {
            row[6..SEQ].fill(50);
            row[SEQ + 6..2 * SEQ].fill(51);
        }
        let other = HostValues::I32(other.into());
        let mut loss = |length, batch| {
            let settings = StepSettings { length, learning_rate: 0.0, ..settings };
            let evaluated = stage.evaluate(settings, Some(batch)).unwrap().wait().unwrap().loss;
            assert_eq!(stage.train_step(settings, Some(batch)).unwrap().wait().unwrap().loss, evaluated);
            evaluated
        };
        assert_eq!(loss(Some(6), &batch), loss(Some(6), &other), "{name}");
        assert_ne!(loss(None, &batch), loss(None, &other), "{name}");
        assert_ne!(loss(Some(4), &batch), loss(Some(6), &batch), "{name}");
    }
}

#[test]
fn lengths_that_a_stage_was_not_made_for_or_cannot_have_are_refused() {
    let run = run(&tiny_gpt(0.0, Precision::F32), 2, off());
    let mut stage = run.stage(&run.device());
    let (settings, batch) = step(&run, 0, true);
    let wrong = StepSettings { length: Some(5), ..settings };
    let error = stage.train_step(wrong, Some(&batch)).err().unwrap().to_string();
    assert!(error.contains("samples of 5 tokens") && error.contains("shorter_lengths"), "{error}");
    let shape = tiny_gpt(0.0, Precision::F32);
    let of = |shorter: &[usize]| Run { shorter: shorter.to_vec(), ..self::run(&shape, 2, off()) };
    let longer = SampleRow::conversations(SEQ + 1);
    for (run, texts) in [
        (Run { keeps_losses: true, ..of(&[4]) }, ["several lengths", "keeps_losses"]),
        (of(&[6, 4]), ["shorter lengths [6, 4] of samples of 8 tokens", "ascend"]),
        (of(&[0, 4]), ["shorter lengths [0, 4]", "above 0"]),
        (of(&[8]), ["shorter lengths [8]", "below that length"]),
        (Run { row: Some(longer), ..of(&[]) }, ["samples of 9 tokens, and the model takes up to 8", "max_seq_len"]),
    ] {
        let error = run.try_stage(&run.device()).err().unwrap().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}
