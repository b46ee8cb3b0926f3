//! Experts in 8 bits: learning as in 16 bits, and settings and recompute that change no bit.

use engine::fp8::{Fp8, Fp8Recipe};
use engine::graph_options::GraphOptions;
use engine::model::{BalanceGroup, BalanceLoss, Experts, GptShape};
use engine::precision::Precision;
use engine::step::StepResult;

use crate::experts::FOUR;
use crate::models::{Kind, Layout, Run, all_settings, assert_graphs_change_no_bit, off, tiny_llama};

const RECIPES: [Fp8Recipe; 2] = [Fp8Recipe::Tensorwise, Fp8Recipe::Delayed];

/// Every other block has experts, one of them shared. All sizes are multiples of 16, for two ranks that share layers too.
pub fn shape(dropout: f32, recipe: Option<Fp8Recipe>) -> GptShape {
    let experts = Experts {
        ffn: 32,
        shared_ffn: 32,
        pattern: vec![false, true],
        balance: Some(BalanceLoss { multiplier: 0.01, over: BalanceGroup::Microbatch }),
        ..FOUR
    };
    let fp8 = recipe.map(|recipe| Fp8 { recipe, amax_history: 4, ..Fp8::default() });
    let base = tiny_llama(dropout, Precision::Bf16);
    GptShape { ffn: 64, kv_heads: 4, layers: 4, experts: Some(experts), fp8, ..base }
}

fn run(shape: GptShape, microbatches: usize, graphs: GraphOptions) -> Run {
    Run { shape: Some(shape), steps: 8, learning_rate: 3e-3, ..Run::new(Kind::Llama, microbatches, graphs) }
}

fn losses(results: &[StepResult]) -> Vec<f64> {
    results.iter().map(|step| step.loss).collect()
}

#[test]
fn experts_in_8_bits_learn_as_those_in_16_bits_do() {
    let of = |recipe| losses(&Run { steps: 80, ..run(shape(0.0, recipe), 2, off()) }.train().0);
    let bf16 = of(None);
    for recipe in RECIPES {
        let eight = of(Some(recipe));
        let end = |losses: &[f64]| losses[70..].iter().sum::<f64>() / 10.0;
        let gap = (end(&eight) / end(&bf16) - 1.0).abs();
        assert!(end(&eight) < 0.9 * eight[0], "{recipe}: {eight:?}");
        assert!(gap > 0.0 && gap < 0.03, "{recipe}: {gap} away from {bf16:?}: {eight:?}");
    }
}

#[test]
fn experts_in_8_bits_have_the_same_bits_in_every_setting() {
    for (recipe, microbatches) in [(Fp8Recipe::Tensorwise, 1), (Fp8Recipe::Delayed, 3)] {
        let of = |graphs| run(shape(0.1, Some(recipe)), microbatches, graphs).train();
        let (plain, _) = assert_graphs_change_no_bit(&recipe.to_string(), &all_settings()[1..], of);
        assert!(plain.iter().all(|step| step.applied));
    }
}

#[test]
fn experts_in_8_bits_computed_again_have_the_scales_of_the_first_forward() {
    for recipe in RECIPES {
        let of = |selective, full| {
            let shape = GptShape { recompute: selective, ..shape(0.1, Some(recipe)) };
            Run { recompute: full, ..run(shape, 2, GraphOptions::default()) }.train()
        };
        let kept = of(false, None);
        for (selective, full) in [(true, None), (false, Some(1)), (true, Some(2))] {
            assert!(of(selective, full) == kept, "{recipe} {selective} {full:?}");
        }
    }
}

#[test]
fn evaluation_leaves_the_scales_of_experts_alone() {
    let train = |recipe, evaluates: bool| {
        let run = run(shape(0.0, Some(recipe)), 2, GraphOptions::default());
        let mut stage = run.stage(&run.device());
        let step = |step| {
            let settings = run.settings(step);
            assert!(!evaluates || run.evaluate(&mut stage, settings).loss.is_finite());
            run.step(&mut stage, settings)
        };
        (0..5).map(step).collect::<Vec<StepResult>>()
    };
    for recipe in RECIPES {
        assert_eq!(train(recipe, false), train(recipe, true), "{recipe}");
    }
}

#[test]
fn ranks_that_gather_experts_in_8_bits_have_the_bits_of_those_that_gather_16() {
    for recipe in RECIPES {
        let of = |gathers_weights| {
            let shape = shape(0.1, Some(recipe));
            let shape = GptShape { fp8: shape.fp8.map(|fp8| Fp8 { gathers_weights, ..fp8 }), ..shape };
            let own = || Run { distributed_optimizer: true, ..run(shape.clone(), 2, GraphOptions::default()) };
            Layout::new(1, 2, 1, 2).on_ranks(own, |run| losses(&run.train().0))
        };
        assert_eq!(of(false), of(true), "{recipe}");
    }
}
