//! Steps that are spikes make no update: the same steps in every layout, with graphs, and after a restart.

use device::Device;
use device::ops::Status;
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::optimizer::SkipStep;
use engine::precision::Precision;
use engine::step::{Stage, StepResult};

use super::muon::muon_groups;
use crate::models::{Kind, Layout, Run, all_settings, batch, tiny_gpt};

const STEPS: usize = 14;
/// The step with a learning rate so large that the next steps' losses are spikes.
const LEAP: usize = 8;
const SKIP: SkipStep = SkipStep { sigma_factor: 6.0, interval: 8 };

fn run(data: usize, graphs: GraphOptions) -> Run {
    let shape: GptShape = tiny_gpt(0.1, Precision::F32);
    Run { shape: Some(shape), skip_step: Some(SKIP), steps: STEPS, ..Run::new(Kind::Gpt, 4 / data, graphs) }
}

fn step(stage: &mut Stage, run: &Run, step: usize) -> StepResult {
    let mut settings = run.settings(step);
    settings.learning_rate = if step == LEAP { 1.0 } else { 1e-3 };
    let samples = stage.needs_batch().then(|| batch(run.kind, settings.first_sample, run.microbatches));
    stage.train_step(settings, samples.as_ref()).unwrap().wait().unwrap()
}

fn weights(device: &Device, stage: &Stage) -> Vec<u32> {
    let params = stage.params().iter();
    params.flat_map(|(_, param)| device.download::<f32>(&param.master).unwrap()).map(f32::to_bits).collect()
}

/// The results of a training: the numbers of all steps, and after each step the bits of the weights here.
fn train(run: &Run) -> (Vec<StepResult>, Vec<Vec<u32>>) {
    let device = run.device();
    let mut stage = run.stage(&device);
    let each = |at| (step(&mut stage, run, at), weights(&device, &stage));
    (0..STEPS).map(each).unzip()
}

/// The steps that a sample's mean and deviation say are spikes, from their losses and norms.
fn expected_spikes(results: &[StepResult]) -> Vec<bool> {
    let is_spike = |values: &[f64], value: f64| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
        value > mean + f64::from(SKIP.sigma_factor) * variance.sqrt()
    };
    let spike = |at: usize| {
        let before = &results[at.saturating_sub(SKIP.interval)..at];
        let of = |value: fn(&StepResult) -> f64| before.iter().map(value).collect::<Vec<f64>>();
        before.len() >= SKIP.interval / 2
            && (is_spike(&of(|r| r.loss), results[at].loss)
                || is_spike(&of(|r| f64::from(r.grad_norm)), f64::from(results[at].grad_norm)))
    };
    (0..results.len()).map(spike).collect()
}

#[test]
fn a_spike_makes_no_update_and_every_other_step_makes_one() {
    let (results, weights) = train(&run(1, GraphOptions::default()));
    let spikes: Vec<bool> = results.iter().map(|result| result.spike).collect();
    assert_eq!(spikes, expected_spikes(&results));
    assert!(spikes[LEAP + 1] && !spikes[..=LEAP].contains(&true), "{results:?}");
    for at in 1..STEPS {
        assert_eq!(weights[at] == weights[at - 1], spikes[at], "step {at}");
        assert_eq!(results[at].applied, !spikes[at], "step {at}");
        assert_eq!(results[at].skipped as usize, spikes[..=at].iter().filter(|spike| **spike).count(), "step {at}");
    }
}

#[test]
fn muon_leaves_weights_alone_in_a_spike_too() {
    let run = Run { groups: Some(muon_groups()), ..run(1, GraphOptions::default()) };
    let (results, weights) = train(&run);
    let spikes: Vec<usize> = (0..STEPS).filter(|at| results[*at].spike).collect();
    assert!(!spikes.is_empty(), "{results:?}");
    assert!(spikes.iter().all(|&at| weights[at] == weights[at - 1]), "spikes {spikes:?}");
}

#[test]
fn every_layout_skips_the_steps_that_one_rank_skips() {
    let graphs = || GraphOptions { scope: Scope::FullIteration, poison: true, ..GraphOptions::default() };
    let on_ranks = |layout: Layout, divided: bool| {
        let run = || Run { distributed_optimizer: divided, ..run(layout.data, graphs()) };
        let ranks = layout.on_ranks(run, |run| train(&run).0);
        assert!(ranks.iter().all(|results| *results == ranks[0]), "{layout:?}: ranks disagree");
        ranks[0].iter().map(|result| result.spike).collect::<Vec<bool>>()
    };
    let alone = on_ranks(Layout::new(1, 1, 1, 1), false);
    assert!(alone.contains(&true));
    for (layout, divided) in [
        (Layout::new(1, 1, 1, 2), true),
        (Layout::new(2, 1, 1, 1), false),
        (Layout::new(1, 2, 1, 1), false),
        (Layout::new(2, 2, 1, 2), true),
    ] {
        assert_eq!(on_ranks(layout, divided), alone, "{layout:?}");
    }
}

#[test]
fn graphs_change_no_bit_of_a_training_that_skips_spikes() {
    let plain = train(&run(1, GraphOptions { enable: false, ..GraphOptions::default() }));
    for (name, options) in all_settings().into_iter().skip(1).step_by(5) {
        assert_eq!(train(&run(1, options)), plain, "{name}");
    }
}

#[test]
fn a_history_that_is_loaded_decides_as_the_one_that_was_saved() {
    let run = run(1, GraphOptions::default());
    let device = run.device();
    let (mut one, mut other) = (run.stage(&device), run.stage(&device));
    for at in 0..LEAP + 1 {
        step(&mut one, &run, at);
    }
    let (status, history) = one.optimizer().counters(&device).unwrap();
    let history = history.unwrap();
    assert_eq!((status.recorded as usize, history.losses.len(), history.norms.len()), (LEAP + 1, 8, 8));
    for (at, (_, param)) in one.params().iter().enumerate() {
        other.params().set(&device, at, &device.download::<f32>(&param.master).unwrap()).unwrap();
        for (from, to) in one.optimizer().state(at).iter().zip(other.optimizer().state(at)) {
            device.upload(&to.tensor, &device.download::<f32>(&from.tensor).unwrap()).unwrap();
        }
    }
    let counters = Status { applied: status.applied, ..Status::default() };
    other.optimizer().set_counters(&device, counters, Some(&history)).unwrap();
    let rest = |stage: &mut Stage| (LEAP + 1..STEPS).map(|at| step(stage, &run, at)).collect::<Vec<_>>();
    let results = rest(&mut one);
    assert!(results[0].spike, "{results:?}");
    assert_eq!(rest(&mut other), results);
}
