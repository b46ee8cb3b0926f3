//! Steps on pairs of answers: the same bits in every graph setting, in pieces, and in evaluation.

use device::ops::Preference;
use engine::graph_options::GraphOptions;
use engine::model::{GptShape, SampleRow};
use engine::precision::Precision;
use engine::step::{StepResult, StepSettings};

use crate::models::{Kind, Run, SEQ, all_settings, tiny_llama, with_pairs};

const STEPS: usize = 4;
/// Pairs of a sample, at most.
const MOST: usize = 2;

fn off() -> GraphOptions {
    GraphOptions { enable: false, ..GraphOptions::default() }
}

fn run(graphs: GraphOptions, change: impl FnOnce(GptShape) -> GptShape) -> Run {
    let preference = Some(Preference::Sigmoid { beta: 0.5, label_smoothing: 0.1 });
    let shape = change(GptShape { preference, ..tiny_llama(0.1, Precision::F32) });
    let (shape, row) = (Some(shape), Some(SampleRow::pairs(SEQ, MOST)));
    Run { shape, row, steps: STEPS, keeps_losses: true, ..Run::new(Kind::Llama, 2, graphs) }
}

fn assert_same(name: &str, theirs: &(Vec<StepResult>, Vec<f32>), ours: &(Vec<StepResult>, Vec<f32>)) {
    assert_eq!(theirs.0, ours.0, "{name}");
    assert!(theirs.1.iter().zip(&ours.1).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
}

#[test]
fn pairs_have_the_same_bits_in_every_graph_setting_and_with_recomputed_blocks() {
    let plain = run(off(), |shape| shape).train();
    let told = &plain.0[0].of_pairs;
    assert_eq!(told.len(), 6, "{told:?}");
    assert!((told["rewards/margins"] - told["rewards/chosen"] + told["rewards/rejected"]).abs() < 1e-12);
    for (setting, options) in all_settings() {
        assert_same(&setting, &plain, &run(options, |shape| shape).train());
    }
    let full = Run { recompute: Some(2), ..run(GraphOptions::default(), |shape| shape) };
    assert_same("full recompute", &plain, &full.train());
    let overlapped = Run { overlaps: true, ..run(GraphOptions::default(), |shape| shape) };
    assert_same("overlapped", &plain, &overlapped.train());
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
