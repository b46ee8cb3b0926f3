//! Steps that count the values that 8-bit copies lose: they change no bit, and their counts are right.

use common::Choice;
use device::ops::QuantizeCounts;
use engine::fp8::{Fp8, Fp8Format, Fp8Losses, Fp8Recipe, TensorCounts, TensorKind};
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::{Stage, StepResult};

use crate::models::{Kind, Layout, MICRO_BATCH, Run, SEQ, all_settings, batch, tiny_gpt};

const STEPS: usize = 8;

fn shape(fp8: Fp8) -> GptShape {
    GptShape { layers: 3, fp8: Some(fp8), ..tiny_gpt(0.1, Precision::Bf16) }
}

fn run(recipe: Fp8Recipe, microbatches: usize, graphs: GraphOptions) -> Run {
    // In the hybrid format; blockwise scaling does not have it.
    let format = if recipe == Fp8Recipe::Blockwise { Fp8Format::E4m3 } else { Fp8Format::Hybrid };
    let fp8 = Fp8 { recipe, format, amax_history: 4, ..Fp8::default() };
    Run { shape: Some(shape(fp8)), steps: STEPS, ..Run::new(Kind::Gpt, microbatches, graphs) }
}

/// A step that measures.
fn measure(stage: &mut Stage, run: &Run, step: usize) -> (StepResult, Vec<TensorCounts>) {
    let settings = run.settings(step);
    let samples = stage.needs_batch().then(|| batch(run.kind, settings.first_sample, run.microbatches));
    let (metrics, counts) = stage.measured_step(settings, samples.as_ref()).unwrap();
    (metrics.wait().unwrap(), counts.map(|counts| counts.wait().unwrap()).unwrap_or_default())
}

/// Runs all steps; a step measures if `measures` takes its number. Returns their results, and the final weights.
fn train(run: &Run, measures: impl Fn(usize) -> bool) -> (Vec<StepResult>, Vec<u32>) {
    let device = run.device();
    let mut stage = run.stage(&device);
    let results = (0..STEPS).map(|step| {
        let settings = run.settings(step);
        match measures(step) {
            true => measure(&mut stage, run, step).0,
            false => {
                let samples = batch(run.kind, settings.first_sample, run.microbatches);
                stage.train_step(settings, Some(&samples)).unwrap().wait().unwrap()
            }
        }
    });
    let results = results.collect();
    let weights = stage.params().iter().flat_map(|(_, param)| device.download::<f32>(&param.master).unwrap());
    (results, weights.map(f32::to_bits).collect())
}

#[test]
fn measuring_changes_no_bit_with_graphs_and_without() {
    for recipe in Fp8Recipe::ALL {
        let (plain, weights) = train(&run(*recipe, 3, all_settings()[0].1.clone()), |_| false);
        for (name, graphs) in all_settings().into_iter().step_by(3) {
            let (measured, others) = train(&run(*recipe, 3, graphs), |step| step % 2 == 1);
            assert_eq!(weights, others, "{recipe} {name}");
            for (step, (plain, measured)) in plain.iter().zip(&measured).enumerate() {
                assert_eq!(*plain, StepResult { fp8: None, ..measured.clone() }, "{recipe} {name}, step {step}");
                assert_eq!(measured.fp8.is_some(), step % 2 == 1);
            }
        }
    }
}

/// Fails unless the shares of a step on one rank are those of its counts.
fn assert_shares(result: &StepResult, counts: &[TensorCounts]) {
    for (kind, losses) in result.fp8.unwrap().by_kind() {
        let of_kind = || counts.iter().filter(|tensor| tensor.kind == kind).map(|tensor| tensor.counts);
        let share = |count: fn(QuantizeCounts) -> u64| {
            of_kind().map(count).sum::<u64>() as f64 / of_kind().map(|counts| counts.values).sum::<u64>() as f64
        };
        assert_eq!(losses.saturated, share(|counts| counts.saturated), "{kind}");
        assert_eq!(losses.underflowed, share(|counts| counts.underflowed), "{kind}");
    }
}

#[test]
fn every_value_of_every_tensor_is_counted_once() {
    let run = run(Fp8Recipe::Tensorwise, 3, GraphOptions::default());
    let mut stage = run.stage(&run.device());
    // Warm-up, capture and replay of the graphs that measure.
    for step in 0..4 {
        let (result, counts) = measure(&mut stage, &run, step);
        assert_shares(&result, &counts);
        let names: Vec<_> = counts.iter().map(|tensor| (tensor.weight.clone(), tensor.kind)).collect();
        assert_eq!(names.len(), 3 * 4 * 3);
        assert_eq!(names[1], ("h.0.attn.c_attn.weight".into(), TensorKind::Weight));
        for TensorCounts { weight, kind, counts } in &counts {
            let (spec, _) = stage.params().iter().find(|(spec, _)| spec.name == *weight).unwrap();
            let tokens = 3 * MICRO_BATCH * SEQ;
            let values = match kind {
                TensorKind::Input => tokens * spec.shape.last(),
                TensorKind::Weight => spec.shape.elements(),
                TensorKind::GradOutput => tokens * spec.shape.rows(),
            };
            assert_eq!(counts.values, values as u64, "step {step}: {kind} of {weight}");
            assert_eq!((counts.saturated, counts.not_finite), (0, 0), "a tensor's own scale fits: {kind} of {weight}");
        }
    }
}

#[test]
fn a_scale_that_is_too_small_saturates_and_one_that_is_too_large_underflows() {
    let run = run(Fp8Recipe::Delayed, 1, GraphOptions::default());
    let device = run.device();
    let mut stage = run.stage(&device);
    let mut seen = Vec::new();
    for step in 0..4 {
        if let Some(factor) = [None, None, Some(1.0 / 16.0), Some(1e5)][step] {
            let cells: Vec<_> = stage.params().iter().filter_map(|(_, param)| param.fp8?.input).collect();
            for cell in cells {
                let scale = device.download::<f32>(&cell.scale).unwrap()[0];
                device.upload(&cell.scale, &[scale * factor]).unwrap();
            }
        }
        let (result, counts) = measure(&mut stage, &run, step);
        assert_shares(&result, &counts);
        seen.push(result.fp8.unwrap().input);
    }
    assert!(seen[1].saturated < 0.01 && seen[1].underflowed < 0.01, "{seen:?}");
    assert!(seen[2].saturated > 0.3, "a sixteenth of the scale leaves a sixteenth of the range: {seen:?}");
    assert!(seen[3].underflowed > 0.1 && seen[3].saturated == 0.0, "{seen:?}");
}

#[test]
fn ranks_report_what_all_of_them_lost() {
    let of = |layout: Layout| -> Vec<Fp8Losses> {
        // So much less than the largest magnitude needs that many values saturate.
        let fp8 = Fp8 { recipe: Fp8Recipe::Delayed, margin: -3, ..Fp8::default() };
        let own = || Run {
            shape: Some(GptShape { hidden_dropout: 0.0, attention_dropout: 0.0, ..shape(fp8) }),
            ..run(Fp8Recipe::Delayed, 4 / layout.data, GraphOptions::default())
        };
        layout.on_ranks(own, |run| {
            let mut stage = run.stage(&run.device());
            (0..3).map(|step| measure(&mut stage, &run, step).0.fp8.unwrap()).last().unwrap()
        })
    };
    let alone = of(Layout::new(1, 1, 1, 1))[0];
    assert!(alone.input.saturated > 0.05 && alone.grad_output.saturated > 0.05, "{alone:?}");
    for layout in [
        Layout::new(2, 1, 1, 1),
        Layout::new(1, 3, 1, 1),
        Layout::new(1, 1, 1, 2),
        Layout { zero_bubble: true, ..Layout::new(1, 3, 1, 1) },
        Layout::new(2, 3, 1, 1),
    ] {
        let ranks = of(layout);
        for losses in &ranks {
            assert_eq!(losses, &ranks[0], "{layout:?}");
            for ((kind, here), (_, there)) in losses.by_kind().iter().zip(alone.by_kind()) {
                // Ranks that share layers all count whole inputs, and each its part of a divided one.
                let within = if layout.tensor > 1 { 0.4 } else { 0.1 };
                let near = (here.saturated - there.saturated).abs() < within * there.saturated + 1e-4;
                assert!(near, "{layout:?}: {kind} {here:?}, alone {there:?}");
            }
        }
    }
}
