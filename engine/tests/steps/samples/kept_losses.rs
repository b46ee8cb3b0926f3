//! Evaluations that keep the loss of each token for the host.

use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::precision::Precision;

use crate::models::{Kind, Layout, MICRO_BATCH, Run, SEQ, all_settings, batch, tiny_gpt};

const MICROBATCHES: usize = 4;

fn run(data: usize, graphs: GraphOptions) -> Run {
    let shape = GptShape { loss_pieces: 2, ..tiny_gpt(0.1, Precision::F32) };
    Run { shape: Some(shape), keeps_losses: true, ..Run::new(Kind::Gpt, MICROBATCHES / data, graphs) }
}

/// The loss and the losses of four evaluations, the last two after a training step: enough to replay graphs.
fn evaluated(run: &Run) -> Vec<(f64, Option<Vec<f32>>)> {
    let device = run.device();
    let mut stage = run.stage(&device);
    stage.record(run.microbatches, true).unwrap();
    let mut all = Vec::new();
    for step in 0..4 {
        let settings = run.settings(step);
        let batch = batch(run.kind, settings.first_sample, run.microbatches);
        let pending = stage.evaluate(settings, Some(&batch)).unwrap();
        let losses = stage.losses(run.microbatches).unwrap();
        all.push((pending.wait().unwrap().loss, losses.map(|losses| losses.wait().unwrap())));
        if step == 1 {
            stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap();
        }
    }
    all
}

#[test]
fn the_mean_of_the_kept_losses_is_the_loss_in_every_setting_to_the_same_bits() {
    let plain = evaluated(&run(1, GraphOptions { enable: false, ..GraphOptions::default() }));
    for (loss, losses) in &plain {
        let losses = losses.as_ref().unwrap();
        assert_eq!(losses.len(), MICROBATCHES * MICRO_BATCH * SEQ);
        let mean = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64;
        assert!((mean / loss - 1.0).abs() < 1e-6, "{mean} and {loss}");
    }
    assert_ne!(plain[2].1, plain[3].1, "the losses are those of other samples");
    for (name, graphs) in all_settings().into_iter().skip(1).step_by(3) {
        assert!(evaluated(&run(1, graphs)) == plain, "{name}");
    }
}

#[test]
fn each_rank_with_the_head_has_the_losses_of_its_own_samples() {
    let alone = evaluated(&run(1, GraphOptions::default()));
    for layout in [Layout::new(1, 1, 1, 2), Layout::new(2, 1, 1, 1), Layout::new(1, 2, 1, 1), Layout::new(2, 2, 1, 2)] {
        let ranks = layout.on_ranks(|| run(layout.data, GraphOptions::default()), |run| evaluated(&run));
        for step in 0..4 {
            let (loss, losses) = &alone[step];
            let mut parts = Vec::new();
            for (rank, all) in ranks.iter().enumerate() {
                let [stage, tensor] =
                    [parallel::Axis::Pipeline, parallel::Axis::Tensor].map(|axis| layout.position(rank, axis));
                assert!((all[step].0 / loss - 1.0).abs() < 1e-5, "{layout:?}, rank {rank}, step {step}");
                assert_eq!(all[step].1.is_some(), stage + 1 == layout.stages, "{layout:?}, rank {rank}");
                if let (0, Some(losses)) = (tensor, &all[step].1) {
                    parts.extend(losses.iter().copied());
                }
            }
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
            assert_eq!(parts.len(), losses.as_ref().unwrap().len());
            assert!(parts.iter().zip(losses.as_ref().unwrap()).all(close), "{layout:?}, step {step}");
        }
    }
}
