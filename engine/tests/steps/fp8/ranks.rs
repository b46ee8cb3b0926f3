//! Rows of the residual stream that ranks quantise themselves and gather in 8 bits.

use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::params::Param;
use engine::precision::Precision;
use engine::step::StepResult;

use crate::exchange::relative_l2;
use crate::models::{Kind, Layout, Run, all_settings, batch, off, tiny_gpt, tiny_llama};

/// All sizes are multiples of 16 on each of two ranks that share layers.
fn run(kind: Kind, recipe: Fp8Recipe, recompute: bool, graphs: GraphOptions) -> Run {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    let fp8 = Some(Fp8 { recipe, format: Fp8Format::Hybrid, amax_history: 2, ..Fp8::default() });
    let shape = GptShape { ffn: 64, kv_heads: 4, layers: 3, fp8, recompute, ..own(0.0, Precision::Bf16) };
    Run { shape: Some(shape), steps: 4, learning_rate: 3e-3, ..Run::new(kind, 2, graphs) }
}

/// A rank's results, the gradients of the last step by name, and the transposes of gathered bytes in its graphs.
type Trained = (Vec<StepResult>, Vec<(String, Vec<f64>)>, usize);

/// The results of the ranks of a layout.
fn train(layout: Layout, own: impl Fn() -> Run + Sync) -> Vec<Trained> {
    layout.on_ranks(own, |run| {
        let device = run.device();
        let (results, mut stage) = run.train_on(&device);
        let gradient =
            |param: &Param| device.download::<f32>(&param.grad.unwrap()).unwrap().into_iter().map(f64::from).collect();
        let gradients = stage.params().iter().map(|(spec, param)| (spec.name.clone(), gradient(param))).collect();
        let graphs = stage.graphs().report().graphs;
        let nodes = graphs.iter().flat_map(|graph| &graph.nodes);
        (results, gradients, nodes.filter(|node| node.ends_with("/transpose_fp8")).count())
    })
}

#[test]
fn rows_that_are_gathered_in_8_bits_train_as_rows_that_every_rank_has() {
    let two = Layout::new(2, 1, 1, 1);
    let layouts = [
        (Kind::Gpt, Fp8Recipe::Tensorwise, two, false),
        (Kind::Gpt, Fp8Recipe::Delayed, two, false),
        (Kind::Llama, Fp8Recipe::Delayed, two, false),
        // Biases are summed over the ranks that share layers before their buckets are reduced.
        (Kind::Gpt, Fp8Recipe::Delayed, Layout::new(2, 1, 1, 2), false),
        (Kind::Gpt, Fp8Recipe::Delayed, Layout::new(2, 1, 1, 2), true),
        (Kind::Gpt, Fp8Recipe::Delayed, Layout { zero_bubble: true, ..Layout::new(2, 3, 1, 1) }, false),
    ];
    for (kind, recipe, layout, divided) in layouts {
        let of = |sequence| {
            let own = || Run { distributed_optimizer: divided, ..run(kind, recipe, false, GraphOptions::default()) };
            train(Layout { sequence, ..layout }, own)
        };
        let what = format!("{kind:?} {recipe} {layout:?} divided {divided}");
        for ((whole, expected, none), (rows, found, transposes)) in of(false).iter().zip(&of(true)) {
            assert!(*none == 0 && *transposes > 0, "{what}: {none} and {transposes} transposes");
            for (a, b) in whole.iter().zip(rows) {
                assert!((b.loss / a.loss - 1.0).abs() < 1e-6, "{what}: {a:?}, with divided rows {b:?}");
            }
            // Optimizer shards leave a rank its own part of the reduced gradients alone.
            if !divided {
                for ((name, expected), (_, found)) in expected.iter().zip(found) {
                    let away = relative_l2(found, expected);
                    assert!(away < 1e-5, "{what}: {name} is {away} away");
                }
            }
        }
    }
}

#[test]
fn graphs_and_recompute_change_no_bit_of_rows_that_are_gathered_in_8_bits() {
    let bits = |trained: Vec<Trained>| -> Vec<_> {
        trained.into_iter().map(|(results, gradients, _)| (results, gradients)).collect()
    };
    for recipe in [Fp8Recipe::Tensorwise, Fp8Recipe::Delayed] {
        let plain = bits(train(Layout::new(2, 1, 1, 1), || run(Kind::Gpt, recipe, false, off())));
        for (name, graphs) in &all_settings()[1..] {
            for recompute in [false, true] {
                let others = train(Layout::new(2, 1, 1, 1), || run(Kind::Gpt, recipe, recompute, graphs.clone()));
                assert!(plain == bits(others), "{recipe} {name}, recompute {recompute}");
            }
        }
    }
}

#[test]
fn weights_that_are_gathered_in_8_bits_have_the_bits_of_weights_that_every_rank_quantises() {
    for (kind, recipe, layout, seed) in [
        (Kind::Gpt, Fp8Recipe::Tensorwise, Layout::new(1, 1, 1, 2), None),
        (Kind::Llama, Fp8Recipe::Delayed, Layout::new(1, 1, 1, 3), Some(5)),
        (Kind::Gpt, Fp8Recipe::Delayed, Layout::new(2, 1, 1, 2), Some(6)),
        (Kind::Gpt, Fp8Recipe::Delayed, Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 2) }, None),
    ] {
        let train = |gathers_weights, graphs: &GraphOptions| {
            let own = || {
                let run = run(kind, recipe, false, graphs.clone());
                let shape = run
                    .shape
                    .map(|shape| GptShape { fp8: shape.fp8.map(|fp8| Fp8 { gathers_weights, ..fp8 }), ..shape });
                Run { shape, distributed_optimizer: true, shuffle: seed, ..run }
            };
            layout.on_ranks(own, |run| {
                let device = run.device();
                let (results, stage) = run.train_on(&device);
                let masters: Vec<u32> = stage
                    .params()
                    .iter()
                    .filter(|(_, param)| param.owned.elements > 0)
                    .flat_map(|(_, param)| device.download::<f32>(&param.master).unwrap())
                    .map(f32::to_bits)
                    .collect();
                (results, masters, stage.params().weight_bytes())
            })
        };
        let plain = train(false, &GraphOptions { enable: false, ..GraphOptions::default() });
        for (name, graphs) in all_settings() {
            let what = format!("{kind:?} {recipe} {layout:?} {name}");
            for ((expected, masters, bytes), (found, own, fewer)) in plain.iter().zip(&train(true, &graphs)) {
                assert_eq!(expected, found, "{what}");
                assert!(masters == own, "{what}: master weights");
                assert!(fewer < bytes, "{what}: {fewer} bytes of weights, {bytes} with gathers in 16 bits");
            }
        }
    }
}

#[test]
fn of_weights_that_are_gathered_in_8_bits_the_same_share_is_lost() {
    let shares = |gathers_weights| {
        let own = || {
            let run = run(Kind::Gpt, Fp8Recipe::Tensorwise, false, GraphOptions::default());
            let shape =
                run.shape.map(|shape| GptShape { fp8: shape.fp8.map(|fp8| Fp8 { gathers_weights, ..fp8 }), ..shape });
            Run { shape, distributed_optimizer: true, ..run }
        };
        Layout::new(1, 1, 1, 2).on_ranks(own, |run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            let steps = (0..4).map(|step| {
                let settings = run.settings(step);
                let samples = batch(run.kind, settings.first_sample, run.microbatches);
                stage.measured_step(settings, Some(&samples)).unwrap().0.wait().unwrap()
            });
            steps.last().unwrap().fp8
        })
    };
    let (whole, parts) = (shares(false), shares(true));
    assert!(whole[0].is_some());
    assert_eq!(whole, parts);
}
