//! Steps on judged answers: the same bits in every graph setting, in pieces, and in evaluation; references of the step
//! itself are those that are kept.

use device::HostValues;
use device::ops::{PairLoss, Preference};
use engine::graph_options::GraphOptions;
use engine::model::{GptShape, References, SampleRow, is_adapter};
use engine::precision::Precision;
use engine::step::{Stage, StepResult, StepSettings};

use crate::lora::with_adapters;
use crate::models::{
    Kind, Run, SEQ, all_settings, assert_graphs_change_no_bit, documents, labelled, off, tiny_llama, with_pairs,
};

const STEPS: usize = 4;
/// Pairs of a sample, at most.
const MOST: usize = 2;
/// Answers of a sample, at most.
const ANSWERS: usize = 4;

fn run(graphs: GraphOptions, change: impl FnOnce(GptShape) -> GptShape) -> Run {
    let preference = Some(Preference::Sigmoid { beta: 0.5, label_smoothing: 0.1 });
    let shape = change(GptShape { preference, ..tiny_llama(0.1, Precision::F32) });
    let (shape, row) = (Some(shape), Some(SampleRow::pairs(SEQ, MOST, References::InRow)));
    Run { shape, row, steps: STEPS, keeps_losses: true, ..Run::new(Kind::Llama, 2, graphs) }
}

#[test]
fn pairs_have_the_same_bits_in_every_graph_setting_and_with_recomputed_blocks() {
    let train = |graphs| run(graphs, |shape| shape).train();
    let plain = assert_graphs_change_no_bit("pairs", &all_settings()[1..], train);
    let told = &plain.0[0].of_pairs;
    assert_eq!(told.len(), 6, "{told:?}");
    assert!((told["rewards/margins"] - told["rewards/chosen"] + told["rewards/rejected"]).abs() < 1e-12);
    let full = Run { recompute: Some(2), ..run(GraphOptions::default(), |shape| shape) };
    assert!(full.train() == plain, "full recompute");
    let overlapped = Run { overlaps: true, ..run(GraphOptions::default(), |shape| shape) };
    assert!(overlapped.train() == plain, "overlapped");
}

#[test]
fn an_evaluation_and_a_loss_in_pieces_are_those_of_a_training_step() {
    let plain = run(off(), |shape| GptShape { hidden_dropout: 0.0, attention_dropout: 0.0, ..shape });
    let first = |run: &Run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        let batch = with_pairs(0, 4, MOST);
        let settings = StepSettings { targets: Some(5), ..run.settings(0) };
        let evaluated = stage.evaluate(settings, Some(&batch)).unwrap().wait().unwrap();
        let kept = stage.losses(2).unwrap().unwrap().wait().unwrap();
        (evaluated, kept, stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap())
    };
    let (evaluated, kept, trained) = first(&plain);
    assert_eq!((evaluated.loss, &evaluated.of_pairs), (trained.loss, &trained.of_pairs));
    // The log-probabilities of the chosen answers, of all pairs that are there.
    let chosen: f64 = kept.chunks(6).map(|pair| f64::from(pair[4])).sum();
    assert!((chosen / 5.0 / trained.of_pairs["logps/chosen"] - 1.0).abs() < 1e-6, "{kept:?}");
    let pieces = run(off(), |shape| GptShape { hidden_dropout: 0.0, attention_dropout: 0.0, loss_pieces: 2, ..shape });
    let (_, in_pieces, results) = first(&pieces);
    assert_eq!((in_pieces, results.loss, results.of_pairs), (kept, trained.loss, trained.of_pairs));
    assert!((results.grad_norm / trained.grad_norm - 1.0).abs() < 1e-5);
}

/// Pairs whose references each step computes.
fn referenced_in_step(graphs: GraphOptions) -> Run {
    let row = Some(SampleRow::pairs(SEQ, MOST, References::WithoutAdapters));
    let run = run(graphs, |shape| with_adapters(shape, 0.1));
    Run { row, frozen: |name| !is_adapter(name), ..run }
}

/// The results of steps on the same samples.
fn on_same(stage: &mut Stage, run: &Run, batch: &HostValues) -> Vec<StepResult> {
    let step = |step| {
        let settings = StepSettings { targets: Some(5), ..run.settings(step) };
        stage.train_step(settings, Some(batch)).unwrap().wait().unwrap()
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn references_of_the_step_itself_are_those_that_are_kept_to_the_bit() {
    let (device, in_step) = (Run::new(Kind::Llama, 2, off()).device(), referenced_in_step(off()));
    let kept = Run { row: Some(SampleRow::pairs(SEQ, MOST, References::InRow)), ..referenced_in_step(off()) };
    let HostValues::I32(rows) = with_pairs(0, 4, MOST) else { unreachable!("tokens") };
    let mut rows = rows.to_vec();
    // Adapters are 0 at first, so an evaluation has the references.
    let mut stage = kept.stage(&device);
    stage.evaluate(kept.settings(0), Some(&HostValues::I32(rows.clone().into()))).unwrap().wait().unwrap();
    let results = stage.losses(2).unwrap().unwrap().wait().unwrap();
    let width = 3 * SEQ + MOST * PairLoss::COLUMNS;
    for (row, results) in rows.chunks_mut(width).zip(results.chunks(MOST * PairLoss::RESULTS)) {
        let pairs = row[3 * SEQ..].chunks_mut(PairLoss::COLUMNS).zip(results.chunks(PairLoss::RESULTS));
        for (pair, results) in pairs.filter(|(pair, _)| pair[1] > 0) {
            let logps = PairLoss::LOG_PROBABILITIES.map(|which| results[which].to_bits() as i32);
            pair[2..].copy_from_slice(&logps);
        }
    }
    let theirs = on_same(&mut stage, &kept, &HostValues::I32(rows.into()));
    let mut stage = in_step.stage(&device);
    let margin = |stage: &mut Stage, step| {
        let evaluated = stage.evaluate(in_step.settings(step), Some(&with_pairs(0, 4, MOST))).unwrap().wait().unwrap();
        evaluated.of_pairs["rewards/margins"]
    };
    assert_eq!(margin(&mut stage, 0), 0.0);
    let ours = on_same(&mut stage, &in_step, &with_pairs(0, 4, MOST));
    assert_eq!(ours, theirs);
    assert!(margin(&mut stage, STEPS) > 0.0, "{ours:?}");
}

#[test]
fn steps_with_forwards_before_them_have_the_same_bits_in_every_graph_setting_and_with_recomputed_blocks() {
    for make in [referenced_in_step, with_labels] {
        let plain = assert_graphs_change_no_bit("forwards", &all_settings()[1..], |graphs| make(graphs).train());
        let full = Run { recompute: Some(2), rehearses: true, ..make(GraphOptions::default()) };
        assert!(full.train() == plain, "full recompute");
        let overlapped = Run { overlaps: true, ..make(GraphOptions::default()) };
        assert!(overlapped.train() == plain, "overlapped");
    }
}

/// Answers with a label.
fn with_labels(graphs: GraphOptions) -> Run {
    let preference = Some(Preference::Kto { beta: 0.5, desirable: 1.0, undesirable: 1.5 });
    let labelled = run(graphs, |shape| GptShape { preference, ..shape });
    Run { row: Some(SampleRow::labelled(SEQ, ANSWERS)), ..labelled }
}

#[test]
fn the_rewards_of_mismatched_answers_are_the_estimate_of_a_step() {
    let run = with_labels(off());
    let device = run.device();
    let mut stage = run.stage(&device);
    let batch = labelled(0, 4, ANSWERS);
    let answers: u64 = (0..4).map(|sample| documents(sample).len() as u64).sum();
    let settings = StepSettings { targets: Some(answers), ..run.settings(0) };
    let evaluated = stage.evaluate(settings, Some(&batch)).unwrap().wait().unwrap();
    let [own, mismatched] = [stage.losses(2), stage.first_losses(2)].map(|kept| kept.unwrap().unwrap().wait().unwrap());
    // The reward of a mismatched answer is that of the chosen one.
    let rewards: f64 = mismatched.chunks(PairLoss::RESULTS).map(|of| f64::from(of[1])).sum();
    let kl = (rewards / answers as f64).max(0.0);
    assert!(kl > 0.0 && (evaluated.of_pairs["kl"] * 0.5 / kl - 1.0).abs() < 1e-5, "{kl} {evaluated:?}");
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut loss, mut desirable, mut undesirable, mut all) = (0.0, Vec::new(), Vec::new(), 0);
    for of in own.chunks(PairLoss::RESULTS).filter(|of| of[4] != 0.0 || of[5] != 0.0) {
        let [chosen, rejected] = [1, 2].map(|at| f64::from(of[at]));
        all += 1;
        match of[3] == 1.0 {
            true => {
                loss += sigmoid(kl - chosen);
                desirable.push(chosen);
            }
            false => {
                loss += 1.5 * sigmoid(rejected - kl);
                undesirable.push(rejected);
            }
        }
    }
    assert_eq!(all, answers);
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    for (name, ours, truth) in [
        ("loss", evaluated.loss, loss / answers as f64),
        ("rewards/chosen", evaluated.of_pairs["rewards/chosen"], mean(&desirable)),
        ("rewards/rejected", evaluated.of_pairs["rewards/rejected"], mean(&undesirable)),
        ("rewards/margins", evaluated.of_pairs["rewards/margins"], mean(&desirable) - mean(&undesirable)),
    ] {
        assert!((ours - truth).abs() < 1e-5 * truth.abs().max(1.0), "{name}: {ours} and {truth}");
    }
}
