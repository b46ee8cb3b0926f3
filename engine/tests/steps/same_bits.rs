//! Graphs change when work is submitted, never its results: losses, norms and weights are the same bits for every
//! scope, pool and boundary setting, with dropout on, for any number of microbatches.

use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::{StepResult, StepSettings};

use crate::models::{Kind, Run, all_settings, assert_graphs_change_no_bit, off, tiny_gpt, tiny_llama};

#[test]
fn every_setting_has_the_same_bits_for_any_number_of_microbatches() {
    for (kind, microbatches) in [
        (Kind::Gpt, 1),
        (Kind::Gpt, 4),
        (Kind::Gpt, 7),
        (Kind::Llama, 4),
        (Kind::Mlp, 1),
        (Kind::Mlp, 4),
        (Kind::Mlp, 7),
    ] {
        let train = |graphs| Run { steps: 8, ..Run::new(kind, microbatches, graphs) }.train();
        let what = format!("{kind:?}, M={microbatches}");
        let (plain, _) = assert_graphs_change_no_bit(&what, &all_settings()[1..], train);
        assert!(plain[7].applied && plain[7].loss < plain[0].loss, "{what} does not learn: {plain:?}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let run = |threads| Run { threads, ..Run::new(Kind::Gpt, 4, GraphOptions::default()) }.train();
    let one = run(1);
    for threads in [2, 3] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn recomputing_norms_and_activations_changes_no_bit_and_saves_memory() {
    for (kind, own) in [(Kind::Gpt, tiny_gpt as fn(f32, Precision) -> GptShape), (Kind::Llama, tiny_llama)] {
        let run = |recompute| {
            let shape = Some(GptShape { recompute, ..own(0.1, Precision::F32) });
            let run = Run { shape, ..Run::new(kind, 4, GraphOptions::default()) };
            let device = run.device();
            let mut stage = run.stage(&device);
            stage.record(4, false).unwrap();
            (run.train(), stage.graphs().memory().iter().map(|area| area.bytes).sum::<usize>())
        };
        let ((kept, all), (again, less)) = (run(false), run(true));
        if crate::models::on_gpu() {
            // There a library's product writes the kept activation. Its last bit may differ from our kernel's.
            let close = |(a, b): (&StepResult, &StepResult)| (a.loss / b.loss - 1.0).abs() < 1e-5;
            assert!(kept.0.iter().zip(&again.0).all(close), "{kind:?}: {:?} and {:?}", kept.0, again.0);
        } else {
            assert!(kept == again, "{kind:?}: {:?} and {:?}", kept.0, again.0);
        }
        assert!(less < all, "{kind:?}: {less} bytes when recomputing, {all} when keeping");
    }
}

#[test]
fn a_loss_in_pieces_differs_in_the_order_of_sums_alone_and_needs_less_memory() {
    let run = |loss_pieces| {
        // So many logits that nothing else needs as much.
        let shape = Some(GptShape { loss_pieces, padded_vocab: 1024, ..tiny_gpt(0.1, Precision::F32) });
        let run = Run { shape, steps: 8, ..Run::new(Kind::Gpt, 4, GraphOptions::default()) };
        let device = run.device();
        let mut stage = run.stage(&device);
        stage.record(4, false).unwrap();
        (run.train().0, stage.graphs().memory().iter().map(|area| area.bytes).sum::<usize>())
    };
    let (whole, all) = run(1);
    let (pieces, less) = run(8);
    for (a, b) in whole.iter().zip(&pieces) {
        assert!((a.loss / b.loss - 1.0).abs() < 1e-5, "{} whole, {} in pieces", a.loss, b.loss);
    }
    assert!(less < all, "{less} bytes in pieces, {all} whole");
}

#[test]
fn the_graphs_are_as_many_as_the_settings_say() {
    // Two blocks, embedding and head; four microbatches, one in flight. One rank reduces nothing. Backwards of the first
    // microbatch but the embedding's, and the head's forward, overwrite gradients. A chunk has one backward for the first
    // microbatch and one for the others.
    let expected = [
        ("PerLayer PerMicrobatch", 4 * 3 - 1 + 1 + 1),
        ("PerLayer Single", 4 * 2 * 4 + 1),
        ("PerChunk PerMicrobatch", 3 + 1),
        ("PerChunk Single", 2 * 4 + 1),
        ("FullIteration", 1),
    ];
    for (name, options) in all_settings().into_iter().filter(|(name, _)| name.ends_with("share true optimizer true")) {
        let run = Run { steps: 3, ..Run::new(Kind::Gpt, 4, options) };
        let (_, mut stage) = run.train_on(&run.device());
        let report = stage.graphs().report();
        let (_, count) = expected.iter().find(|(prefix, _)| name.starts_with(prefix)).unwrap();
        assert_eq!(report.graphs.len(), *count, "{name}: {report}");
        assert_eq!(stage.graphs().expected_graphs(engine::regions::Mode::Train.into()), *count, "{name}");
    }
}

#[test]
fn a_step_allocates_nothing_after_the_first() {
    for (name, options) in all_settings() {
        let run = Run::new(Kind::Gpt, 4, options);
        let device = run.device();
        let mut stage = run.stage(&device);
        let mut after_first = 0;
        for step in 0..6 {
            run.step(&mut stage, run.settings(step));
            if step == 0 {
                after_first = device.allocations();
            }
        }
        assert_eq!(device.allocations(), after_first, "{name}");
    }
}

#[test]
fn slots_take_another_number_of_microbatches_without_a_new_plan() {
    let losses = |options: GraphOptions| -> Vec<u64> {
        let run = Run::new(Kind::Gpt, 7, options);
        let device = run.device();
        let mut stage = run.stage(&device);
        stage.record(7, false).unwrap();
        let loss = |(step, microbatches)| {
            run.step(&mut stage, StepSettings { microbatches, ..run.settings(step) }).loss.to_bits()
        };
        [7, 7, 3, 1, 7, 1, 2].into_iter().enumerate().map(loss).collect()
    };
    assert_eq!(losses(off()), losses(GraphOptions { poison: true, ..GraphOptions::default() }));
}

#[test]
fn a_plan_over_the_whole_step_is_made_for_each_number_of_microbatches_and_none_outgrows_its_memory() {
    for (name, options) in all_settings() {
        let run = Run::new(Kind::Gpt, 4, options);
        let train = |numbers: &[usize]| -> graph_manager::Result<()> {
            let device = run.device();
            let mut stage = run.stage(&device);
            for (step, &microbatches) in numbers.iter().enumerate() {
                let settings = StepSettings { microbatches, ..run.settings(step) };
                let samples = run.samples(&stage, &settings);
                stage.train_step(settings, samples.as_ref())?.wait()?;
            }
            Ok(())
        };
        train(&[4, 2, 4, 2, 4, 2]).unwrap();
        if let Err(error) = train(&[1, 4]) {
            assert!(!name.contains("PerMicrobatch") || name.starts_with("FullIteration"), "{name}: {error}");
            let words = "record every mode, and every number of microbatches";
            assert!(error.to_string().contains(words), "{name}: {error}");
        }
    }
}
