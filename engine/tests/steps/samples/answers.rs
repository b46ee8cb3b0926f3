//! Steps with a loss for some targets only, as in training on answers.

use device::HostValues;
use engine::graph_options::{GraphOptions, Scope};
use engine::precision::Precision;
use engine::step::StepSettings;

use crate::models::{Kind, MICRO_BATCH, Run, SEQ, VOCAB, batch, tiny_gpt};

/// Samples of two microbatches. Those of row `r` end after `lengths[r]` targets.
fn cut(lengths: &[usize]) -> HostValues {
    let HostValues::I32(tokens) = batch(Kind::Gpt, 0, 2) else { unreachable!("a GPT reads tokens") };
    let mut tokens = tokens.to_vec();
    for (row, length) in tokens.chunks_mut(SEQ + 1).zip(lengths) {
        row[length + 1..].fill(-1);
    }
    HostValues::I32(tokens.into())
}

#[test]
fn loss_and_gradients_are_means_over_the_targets_that_count_in_the_whole_batch() {
    // The microbatches have 11 and 6 targets: a mean of their means would be another number.
    let lengths = [3, SEQ, 1, 5];
    let (all, counted) = (2 * MICRO_BATCH * SEQ, lengths.iter().sum::<usize>());
    let step = |graphs: GraphOptions, targets: Option<u64>| {
        let shape = tiny_gpt(0.0, Precision::F32);
        let run = Run { clip: 0.0, shape: Some(shape), ..Run::new(Kind::Gpt, 2, graphs) };
        let mut stage = run.stage(&run.device());
        let settings = StepSettings { targets, ..run.settings(0) };
        let batch = cut(&lengths);
        let evaluated = stage.evaluate(settings, Some(&batch)).unwrap().wait().unwrap().loss;
        let trained = stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap();
        assert_eq!(evaluated, trained.loss);
        (trained.loss, f64::from(trained.grad_norm))
    };
    let eager = GraphOptions::default();
    let (loss, norm) = step(eager.clone(), Some(counted as u64));
    let (loss_of_all, norm_of_all) = step(eager.clone(), None);
    let ratio = all as f64 / counted as f64;
    assert!((loss / loss_of_all / ratio - 1.0).abs() < 1e-9, "{loss} and {loss_of_all}");
    assert!((norm / norm_of_all / ratio - 1.0).abs() < 1e-5, "{norm} and {norm_of_all}");
    // A random model is about as good as guessing: the mean is over those that count, and only over those.
    assert!((loss / (VOCAB as f64).ln() - 1.0).abs() < 0.1, "{loss}");
    let whole = GraphOptions { enable: true, scope: Scope::FullIteration, ..eager };
    assert_eq!(step(whole, Some(counted as u64)), (loss, norm));
}
