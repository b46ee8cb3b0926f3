//! Experts whose loads are limited: as PyTorch computes it, and the same bits in every setting.

use engine::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use engine::model::{BalanceGroup, Capacity, Experts, GptShape, Keeps, SampleRow};
use engine::precision::Precision;
use engine::step::{StepResult, StepSettings};

use crate::experts::{FOUR, padded, run_of, set_routers, tiny_experts, tiny_shared};
use crate::models::{MICRO_BATCH, Run, SEQ, all_settings, assert_graphs_change_no_bit, off, tiny_llama};
use crate::parity::{F32, transformer};

const POLICIES: [Keeps; 2] = [Keeps::HighestWeights, Keeps::FirstTokens];

/// The choices of a microbatch, and the most that one of four experts takes of them with that factor.
const CHOICES: usize = 2 * MICRO_BATCH * SEQ;

/// The same model with such a bound.
fn limited(shape: &GptShape, factor: f64, keeps: Keeps) -> GptShape {
    let experts =
        shape.experts.clone().map(|experts| Experts { capacity: Some(Capacity { factor, keeps }), ..experts });
    GptShape { experts, ..shape.clone() }
}

/// Four blocks of which two have experts with a bound.
pub fn tiny_limited() -> GptShape {
    limited(&tiny_experts(Precision::Bf16), 0.75, Keeps::HighestWeights)
}

/// The dropped choices of a step, over all blocks.
fn dropped(result: &StepResult) -> f32 {
    result.expert_loads.iter().map(|load| load.dropped.expect("loads are limited")).sum()
}

#[test]
fn limited_experts_agree_with_pytorch() {
    for keeps in POLICIES {
        let shape = limited(&tiny_shared(0.0, BalanceGroup::Microbatch), 0.75, keeps);
        transformer(&format!("gpt-capacity-{keeps:?}"), "gpt", &F32, shape);
    }
}

#[test]
fn a_capacity_is_rounded_up_from_the_mean_load() {
    let capacity = |factor, choices, experts| Capacity { factor, keeps: Keeps::FirstTokens }.choices(choices, experts);
    assert_eq!(capacity(1.0, 32, 8), 4);
    assert_eq!(capacity(1.25, 32, 8), 5);
    assert_eq!(capacity(1.0, 33, 8), 5);
    assert_eq!(capacity(1.3, 32, 8), 6);
    assert_eq!(capacity(1e-9, 32, 8), 1);
    assert_eq!(capacity(1e-320, 1, 8), 1);
    assert_eq!(capacity(1e300, 32, 8), usize::MAX);
}

#[test]
fn limited_experts_have_the_same_bits_in_every_setting() {
    for keeps in POLICIES {
        for precision in [Precision::F32, Precision::Bf16] {
            let shape = GptShape { precision, ..limited(&tiny_shared(0.1, BalanceGroup::Sequence), 0.75, keeps) };
            let what = format!("{keeps:?} {precision}");
            let train = |graphs| run_of(&shape, 1, graphs).train();
            let plain = assert_graphs_change_no_bit(&what, &all_settings()[1..], train);
            assert!(plain.0.iter().all(|step| step.applied && dropped(step) > 0.0), "{plain:?}");
            let graphs = || GraphOptions { poison: true, ..GraphOptions::default() };
            let modules = [GraphModule::ROUTER, GraphModule::ROW_ORDER].into();
            let only = GraphSelection { modules, ..GraphSelection::default() };
            let halves = run_of(&shape, 1, GraphOptions { only, ..graphs() });
            assert!(halves.train() == plain, "{what}: graphs of the router");
            let selective = GptShape { recompute: true, ..shape.clone() };
            assert!(run_of(&selective, 1, graphs()).train() == plain, "{what}: selective recompute");
            let full = Run { recompute: Some(2), ..run_of(&shape, 1, graphs()) };
            assert!(full.train() == plain, "{what}: full recompute");
        }
    }
}

#[test]
fn a_capacity_that_no_expert_reaches_changes_nothing() {
    let shape = tiny_shared(0.1, BalanceGroup::Sequence);
    let plain = run_of(&shape, 1, off()).train();
    for keeps in POLICIES {
        // Each of four experts may take all tokens: twice their mean number.
        let (results, weights) = run_of(&limited(&shape, 2.0, keeps), 1, GraphOptions::default()).train();
        let without = |mut result: StepResult| {
            result.expert_loads.iter_mut().for_each(|load| assert_eq!(load.dropped.take(), Some(0.0)));
            result
        };
        assert!((results.into_iter().map(without).collect(), weights) == plain, "{keeps:?}");
    }
}

#[test]
fn no_expert_takes_more_than_its_capacity_and_the_others_are_counted() {
    // All scores are equal, so all tokens choose the first two experts: each has twice the mean load.
    for (factor, most) in [(0.5, CHOICES / 8), (1.0, CHOICES / 4), (1.5, CHOICES * 3 / 8), (2.0, CHOICES / 2)] {
        for keeps in POLICIES {
            let shape = limited(&GptShape { experts: Some(FOUR), ..tiny_llama(0.0, Precision::F32) }, factor, keeps);
            for scope in Scope::ALL {
                let run = run_of(&shape, 1, GraphOptions { scope, poison: true, ..GraphOptions::default() });
                let mut stage = run.stage(&run.device());
                set_routers(&stage, |_| 0.0);
                let result = run.step(&mut stage, StepSettings { learning_rate: 0.0, ..run.settings(0) });
                for load in &result.expert_loads {
                    let (kept, all) = ((most * run.microbatches) as f32, (CHOICES * run.microbatches) as f32);
                    assert_eq!(load.tokens, [kept, kept, 0.0, 0.0], "{factor} {keeps:?}");
                    assert_eq!(load.dropped, Some(all - 2.0 * kept), "{factor} {keeps:?}");
                }
            }
        }
    }
}

#[test]
fn evaluation_drops_nothing() {
    let shape = tiny_shared(0.0, BalanceGroup::Microbatch);
    let evaluate = |shape: &GptShape| {
        let run = run_of(shape, 1, GraphOptions::default());
        run.evaluate(&mut run.stage(&run.device()), run.settings(0)).loss
    };
    let train = |shape: &GptShape| run_of(shape, 1, off()).train().0[0].loss;
    let tight = limited(&shape, 0.25, Keeps::FirstTokens);
    assert_eq!(evaluate(&tight), evaluate(&shape));
    assert_ne!(train(&tight), train(&shape));
}

#[test]
fn padding_takes_no_ones_place() {
    let row = SampleRow::conversations(SEQ).with_padding();
    let (_, targets) = padded(0);
    for keeps in POLICIES {
        let shape = limited(&tiny_shared(0.0, BalanceGroup::Sequence), 0.25, keeps);
        let step = |padding: i32| {
            let run = Run { row: Some(row.clone()), ..run_of(&shape, 1, GraphOptions::default()) };
            let settings = StepSettings { targets: Some(targets as u64), ..run.settings(0) };
            run.stage(&run.device()).train_step(settings, Some(&padded(padding).0)).unwrap().wait().unwrap()
        };
        let (one, other) = (step(0), step(1));
        // Padding has no rows, so it does not even move those of others.
        assert_eq!(one, other, "{keeps:?}");
        for load in &one.expert_loads {
            let kept = load.tokens.iter().sum::<f32>();
            assert_eq!(kept + load.dropped.unwrap(), 2.0 * targets as f32, "{keeps:?}");
            assert!(load.dropped > Some(0.0), "{load:?}");
        }
    }
}
