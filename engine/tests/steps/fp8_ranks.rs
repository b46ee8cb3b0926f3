//! Rows of the residual stream that ranks quantise themselves and gather in 8 bits.

use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::params::Param;
use engine::precision::Precision;
use engine::step::StepResult;

use crate::exchange::relative_l2;
use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt, tiny_llama};

/// All sizes are multiples of 16 on each of two ranks that share layers.
fn run(kind: Kind, recipe: Fp8Recipe, recompute: bool, graphs: GraphOptions) -> Run {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    let fp8 = Some(Fp8 { recipe, format: Fp8Format::Hybrid, amax_history: 2, ..Fp8::default() });
    let shape = GptShape { ffn: 64, kv_heads: 4, layers: 3, fp8, recompute, ..own(0.0, Precision::Bf16) };
    Run { shape: Some(shape), steps: 4, learning_rate: 3e-3, ..Run::new(kind, 2, graphs) }
}

/// A rank's results, the gradients of the last step by name, and the transposes of gathered bytes in its graphs.
type Trained = (Vec<StepResult>, Vec<(String, Vec<f64>)>, usize);

/// What the ranks of a layout train.
fn train(layout: Layout, own: impl Fn() -> Run + Sync) -> Vec<Trained> {
    layout.on_ranks(own, |run| {
        let device = run.device();
        let (results, mut stage) = run.train_on(&device);
        let gradient =
            |param: &Param| device.download::<f32>(&param.grad).unwrap().into_iter().map(f64::from).collect();
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
    let off = || GraphOptions { enable: false, ..GraphOptions::default() };
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
