//! Rows of the residual stream that ranks quantise themselves and gather in 8 bits.

use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::params::Param;
use engine::precision::Precision;
use engine::step::StepResult;

use crate::exchange::relative_l2;
use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt, tiny_llama};

/// All sizes are multiples of 16 on each of two ranks.
fn run(kind: Kind, recipe: Fp8Recipe, recompute: bool, graphs: GraphOptions) -> Run {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    let fp8 = Some(Fp8 { recipe, format: Fp8Format::Hybrid, amax_history: 2, ..Fp8::default() });
    let shape = GptShape { ffn: 64, kv_heads: 4, layers: 3, fp8, recompute, ..own(0.0, Precision::Bf16) };
    Run { shape: Some(shape), steps: 4, learning_rate: 3e-3, ..Run::new(kind, 2, graphs) }
}

/// A rank's results, and the gradients of the last step by name.
type Trained = (Vec<StepResult>, Vec<(String, Vec<f64>)>);

/// What two ranks that share layers train.
fn train(sequence: bool, own: impl Fn() -> Run + Sync) -> Vec<Trained> {
    Layout { sequence, ..Layout::new(2, 1, 1, 1) }.on_ranks(own, |run| {
        let device = run.device();
        let (results, stage) = run.train_on(&device);
        let gradient =
            |param: &Param| device.download::<f32>(&param.grad).unwrap().into_iter().map(f64::from).collect();
        (results, stage.params().iter().map(|(spec, param)| (spec.name.clone(), gradient(param))).collect())
    })
}

#[test]
fn rows_that_are_gathered_in_8_bits_train_as_rows_that_every_rank_has() {
    for kind in [Kind::Gpt, Kind::Llama] {
        for recipe in [Fp8Recipe::Tensorwise, Fp8Recipe::Delayed] {
            let of = |sequence| train(sequence, || run(kind, recipe, false, GraphOptions::default()));
            for ((whole, expected), (divided, found)) in of(false).iter().zip(&of(true)) {
                for (a, b) in whole.iter().zip(divided) {
                    assert!((b.loss / a.loss - 1.0).abs() < 1e-6, "{kind:?} {recipe}: {a:?}, with divided rows {b:?}");
                }
                for ((name, expected), (_, found)) in expected.iter().zip(found) {
                    let away = relative_l2(found, expected);
                    assert!(away < 1e-5, "{kind:?} {recipe}: {name} is {away} away");
                }
            }
        }
    }
}

#[test]
fn graphs_and_recompute_change_no_bit_of_rows_that_are_gathered_in_8_bits() {
    let off = || GraphOptions { enable: false, ..GraphOptions::default() };
    for recipe in [Fp8Recipe::Tensorwise, Fp8Recipe::Delayed] {
        let plain = train(true, || run(Kind::Gpt, recipe, false, off()));
        for (name, graphs) in &all_settings()[1..] {
            for recompute in [false, true] {
                let others = train(true, || run(Kind::Gpt, recipe, recompute, graphs.clone()));
                assert!(plain == others, "{recipe} {name}, recompute {recompute}");
            }
        }
    }
}
