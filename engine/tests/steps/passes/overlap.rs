//! Microbatches that overlap, each forward next to the backward of an earlier microbatch: the bits of a step that has
//! them one after the other, in every setting and in any order that the graph allows.

use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step::StepSettings;

use crate::models::{Kind, Layout, Run, all_settings, off, tiny_gpt, tiny_llama};

#[test]
fn overlapping_microbatches_have_the_bits_of_microbatches_in_turn_in_every_setting() {
    for (kind, microbatches) in [(Kind::Gpt, 1), (Kind::Gpt, 2), (Kind::Gpt, 5), (Kind::Llama, 4), (Kind::Mlp, 3)] {
        let run = |graphs| Run { steps: 5, ..Run::new(kind, microbatches, graphs) };
        let plain = run(off()).train();
        assert!(plain.0[4].loss.is_finite() && plain.0[4].applied);
        for (at, (name, graphs)) in all_settings().into_iter().enumerate() {
            let shuffle = (at > 0).then_some(at as u64);
            let what = format!("{kind:?}, M={microbatches}, {name}");
            assert!(Run { shuffle, overlaps: true, ..run(graphs) }.train() == plain, "{what}");
        }
    }
}

#[test]
fn with_8_bit_products_and_recompute_overlap_changes_no_bit() {
    for (kind, recipe) in [
        (Kind::Gpt, None),
        (Kind::Gpt, Some(Fp8Recipe::Tensorwise)),
        (Kind::Llama, Some(Fp8Recipe::Delayed)),
        (Kind::Gpt, Some(Fp8Recipe::Rowwise)),
        (Kind::Llama, Some(Fp8Recipe::Blockwise)),
    ] {
        for (recompute, blocks) in [(false, None), (true, None), (false, Some(2))] {
            let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
            let fp8 = recipe.map(|recipe| Fp8 { recipe, format: Fp8Format::E4m3, ..Fp8::default() });
            let shape = own(0.1, Precision::Bf16);
            let shape = GptShape { ffn: 64, kv_heads: 4, layers: 3, recompute, fp8, ..shape };
            let run = |graphs| Run {
                shape: Some(shape.clone()),
                steps: 4,
                learning_rate: 3e-3,
                recompute: blocks,
                ..Run::new(kind, 3, graphs)
            };
            let plain = run(off()).train();
            for (name, graphs) in all_settings().into_iter().filter(|(name, _)| !name.contains("share false")) {
                let what = format!("{kind:?} {recipe:?} recompute {recompute} {blocks:?} {name}");
                assert!(Run { shuffle: Some(3), overlaps: true, ..run(graphs) }.train() == plain, "{what}");
            }
        }
    }
}

#[test]
fn data_parallel_ranks_that_divide_the_optimizer_overlap_microbatches_to_the_same_bits() {
    let train = |graphs: &GraphOptions, overlaps| {
        let run = || Run {
            steps: 4,
            distributed_optimizer: true,
            clip: 0.0,
            shuffle: Some(11),
            overlaps,
            ..Run::new(Kind::Gpt, 3, graphs.clone())
        };
        Layout::new(1, 1, 1, 2).on_ranks(run, |run| run.train())
    };
    let plain = train(&off(), false);
    for (name, graphs) in all_settings().iter().filter(|(name, _)| !name.contains("share false")) {
        assert!(train(graphs, true) == plain, "{name}");
    }
}

#[test]
fn with_tensor_parallelism_overlap_changes_no_bit() {
    for (layout, recipe) in [
        (Layout { sequence: false, ..Layout::new(2, 1, 1, 1) }, None),
        (Layout::new(2, 1, 1, 1), None),
        (Layout::new(2, 1, 1, 2), Some(Fp8Recipe::Delayed)),
        (Layout::new(2, 1, 1, 1), Some(Fp8Recipe::Blockwise)),
    ] {
        let train = |graphs: &GraphOptions, overlaps| {
            let fp8 = recipe.map(|recipe| Fp8 { recipe, format: Fp8Format::E4m3, ..Fp8::default() });
            let precision = if recipe.is_some() { Precision::Bf16 } else { Precision::F32 };
            let shape = GptShape { ffn: 64, fp8, ..tiny_gpt(0.1, precision) };
            let run = || Run {
                shape: Some(shape.clone()),
                steps: 4,
                distributed_optimizer: layout.data > 1,
                shuffle: Some(7),
                overlaps,
                ..Run::new(Kind::Gpt, 3, graphs.clone())
            };
            layout.on_ranks(run, |run| run.train())
        };
        let plain = train(&off(), false);
        for (name, graphs) in all_settings().iter().filter(|(name, _)| !name.contains("share false")) {
            assert!(train(graphs, true) == plain, "{layout:?}, {recipe:?}, {name}");
        }
    }
}

#[test]
fn stages_of_a_pipeline_overlap_microbatches_to_the_same_bits() {
    for (layout, microbatches) in [
        (Layout::new(1, 2, 1, 1), 1),
        (Layout::new(1, 2, 1, 1), 3),
        (Layout::new(1, 2, 1, 1), 6),
        (Layout::new(1, 3, 1, 1), 7),
        (Layout::new(1, 2, 1, 2), 5),
        (Layout::new(2, 2, 1, 1), 4),
        (Layout::new(1, 2, 2, 1), 4),
        (Layout { group: 3, ..Layout::new(1, 2, 2, 1) }, 6),
    ] {
        let train = |graphs: &GraphOptions, overlaps| {
            let shape = GptShape { layers: 4, ..tiny_gpt(0.1, Precision::F32) };
            let run = || Run {
                shape: Some(shape.clone()),
                steps: 4,
                distributed_optimizer: layout.data > 1,
                clip: if layout.data > 1 { 0.0 } else { 1.0 },
                shuffle: Some(5),
                overlaps,
                ..Run::new(Kind::Gpt, microbatches, graphs.clone())
            };
            layout.on_ranks(run, |run| run.train())
        };
        let plain = train(&off(), false);
        for (name, graphs) in all_settings().iter().filter(|(name, _)| !name.contains("share false")) {
            assert!(train(graphs, true) == plain, "{layout:?}, M={microbatches}, {name}");
        }
    }
}

#[test]
fn neither_a_forward_nor_the_backward_next_to_it_waits_for_the_other_on_any_stage() {
    let (stages, microbatches) = (2, 6);
    let layout = Layout::new(1, stages, 1, 1);
    let run = || {
        let graphs = GraphOptions { scope: Scope::FullIteration, ..GraphOptions::default() };
        let shape = GptShape { layers: 4, ..tiny_gpt(0.1, Precision::F32) };
        Run { shape: Some(shape), steps: 3, overlaps: true, ..Run::new(Kind::Gpt, microbatches, graphs) }
    };
    let graphs = layout.on_ranks(run, |run| {
        let (_, mut stage) = run.train_on(&run.device());
        stage.graphs().report().graphs.remove(0)
    });
    for (stage, graph) in graphs.iter().enumerate() {
        // A block of the stage. The first layer embeds.
        let layer = 1 + 2 * stage;
        let nodes_of = |pass: &str, microbatch: usize| -> Vec<usize> {
            let name = format!("{pass} of layer {layer}, microbatch {microbatch}/");
            let nodes: Vec<usize> = (0..graph.nodes.len()).filter(|&at| graph.nodes[at].starts_with(&name)).collect();
            assert!(!nodes.is_empty(), "{name}: {:?}", graph.nodes);
            nodes
        };
        let waits = |nodes: &[usize], for_nodes: &[usize]| {
            let after = graph.waits_for(for_nodes);
            nodes.iter().any(|&at| after[at])
        };
        let ahead = 2 * (stages - stage) - 1;
        for next in ahead..microbatches {
            let (forward, backward) = (nodes_of("forward", next), nodes_of("backward", next - ahead));
            assert!(!waits(&backward, &forward), "stage {stage}: backward {} waits for {next}", next - ahead);
            assert!(!waits(&forward, &backward), "stage {stage}: forward {next} waits for {}", next - ahead);
            if next + 1 < microbatches {
                let (forward, backward) = (nodes_of("forward", next + 1), nodes_of("backward", next - ahead));
                assert!(waits(&forward, &backward), "stage {stage}: forward {} is not in a turn of its own", next + 1);
            }
        }
    }
}

#[test]
fn two_microbatches_are_in_memory_and_evaluation_does_not_change() {
    let losses = |overlaps| {
        let run = Run { overlaps, ..Run::new(Kind::Gpt, 4, GraphOptions::default()) };
        let device = run.device();
        let mut stage = run.stage(&device);
        stage.record(4, true).unwrap();
        let slots = stage.graphs().memory().iter().filter(|area| area.area.contains("slot")).count();
        assert_eq!(slots, if overlaps { 2 } else { 1 });
        let mut losses = Vec::new();
        for (step, microbatches) in [4, 4, 4, 1, 2, 4, 3].into_iter().enumerate() {
            let settings = StepSettings { microbatches, ..run.settings(step) };
            losses.push(run.step(&mut stage, settings).loss);
            losses.push(run.evaluate(&mut stage, settings).loss);
        }
        // Of two slots, each has its own graphs.
        assert!(stage.graphs().expected_graphs(Mode::Train.into()) > 0);
        losses
    };
    assert_eq!(losses(false), losses(true));
}
