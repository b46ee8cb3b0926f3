//! Ranks that divide the experts of a layer train as ranks that each have all of them.

use engine::fp8::Fp8Recipe;
use engine::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use engine::model::{BalanceGroup, BalanceLoss, Capacity, Experts, GptShape, Keeps};
use engine::optimizer::SkipStep;
use engine::precision::Precision;
use engine::step::{Stage, StepResult};

use super::balance::tiny_balanced;
use crate::experts::{FOUR, numbers, run_of, set_routers, tiny_experts, tiny_shared};
use crate::models::{Layout, Run, all_settings, off, tiny_llama};

/// So many ranks that share the batch, of which groups of two divide the experts.
fn pairs(data: usize) -> Layout {
    Layout { expert: 2, ..Layout::new(1, 1, 1, data) }
}

/// So many ranks of which two share layers, and divide whole experts with the others.
fn whole(expert: usize, data: usize) -> Layout {
    Layout { expert, expert_tensor: 1, ..Layout::new(2, 1, 1, data) }
}

/// The steps of rank 0.
fn train(layout: Layout, run: impl Fn() -> Run + Sync) -> Vec<StepResult> {
    layout.on_ranks(run, |run| run.train().0).remove(0)
}

/// The first step differs by the rounding of sums in another order, later ones by what follows from that.
fn assert_close(name: &str, ours: &[StepResult], theirs: &[StepResult]) {
    for (step, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let most = if step == 0 { 1e-5 } else { 1e-3 };
        let pairs: Vec<_> = numbers(ours).into_iter().zip(numbers(theirs)).collect();
        assert!(pairs.iter().all(|(a, b)| (a / b - 1.0).abs() < most), "{name}, step {step}: {pairs:?}");
    }
    assert_eq!(ours[0].expert_loads, theirs[0].expert_loads, "{name}");
}

#[test]
fn layouts_that_divide_experts_have_the_numbers_of_ranks_with_all_experts() {
    for (data, layouts) in [
        (
            2,
            vec![
                pairs(2),
                Layout { expert: 2, ..Layout::new(2, 1, 1, 2) },
                Layout { expert: 2, sequence: false, ..Layout::new(2, 1, 1, 2) },
                whole(2, 2),
                Layout { sequence: false, ..whole(4, 2) },
                Layout { expert: 2, ..Layout::new(1, 2, 2, 2) },
                Layout { expert: 2, zero_bubble: true, ..Layout::new(1, 2, 1, 2) },
            ],
        ),
        (4, vec![pairs(4), Layout { expert: 4, ..Layout::new(1, 1, 1, 4) }]),
    ] {
        let run = |distributed| {
            let mut shape = tiny_balanced();
            shape.experts.as_mut().unwrap().bias_update_rate = Some(0.05);
            Run { distributed_optimizer: distributed, ..run_of(&shape, data, GraphOptions { poison: true, ..off() }) }
        };
        let expected = train(Layout::new(1, 1, 1, data), || run(false));
        for layout in layouts {
            for distributed in [false, true] {
                assert_close(&format!("{layout:?}, {distributed}"), &train(layout, || run(distributed)), &expected);
            }
        }
    }
}

#[test]
fn divided_experts_have_the_same_bits_in_every_setting() {
    let train_with = |per_token: usize, layout: Layout, change: &(dyn Fn(Run) -> Run + Sync)| {
        let mut shape = tiny_experts(Precision::Bf16);
        shape.experts.as_mut().unwrap().per_token = per_token;
        let run = || change(Run { distributed_optimizer: true, ..run_of(&shape, 2, off()) });
        layout.on_ranks(run, |run| run.train())
    };
    // Each token goes to one rank: in slots, or straight to its place.
    let in_slots = train_with(1, pairs(2), &|run| run);
    let graphs = GraphOptions { scope: Scope::FullIteration, poison: true, ..GraphOptions::default() };
    for layout in [pairs(2), Layout { moves_rows: true, ..pairs(2) }] {
        assert!(train_with(1, layout, &|run| run) == in_slots, "{layout:?}");
        assert!(
            train_with(1, layout, &|run| Run { graphs: graphs.clone(), ..run }) == in_slots,
            "{layout:?}, one graph"
        );
    }
    // Each rank has the tokens of both.
    let train = |layout, change: &(dyn Fn(Run) -> Run + Sync)| train_with(2, layout, change);
    let plain = train(pairs(2), &|run| run);
    for (name, options) in &all_settings()[1..] {
        assert!(train(pairs(2), &|run| Run { graphs: options.clone(), ..run }) == plain, "{name}");
    }
    for modules in [vec![GraphModule::ROUTER], vec![GraphModule::ROUTER, GraphModule::ROW_ORDER]] {
        let only = GraphSelection { modules: modules.into_iter().collect(), ..GraphSelection::default() };
        let graphs = GraphOptions { only, poison: true, ..GraphOptions::default() };
        assert!(train(pairs(2), &|run| Run { graphs: graphs.clone(), ..run }) == plain, "halves");
    }
    let again = |run: Run| Run { recompute: Some(1), graphs: GraphOptions::default(), ..run };
    assert!(train(pairs(2), &again) == plain, "recomputed");
    // Whole experts, and the same in one graph, and with rows that go straight to their places.
    let of_whole = train(whole(4, 2), &|run| run);
    assert!(train(whole(4, 2), &|run| Run { graphs: graphs.clone(), ..run }) == of_whole, "whole, in one graph");
    let direct = Layout { moves_rows: true, ..whole(4, 2) };
    assert!(train(direct, &|run| Run { graphs: graphs.clone(), ..run }) == of_whole, "whole, straight to their places");
    // The forward of a microbatch beside the backward of another.
    let stages = Layout { expert: 2, ..Layout::new(1, 2, 1, 2) };
    let in_turn = train(stages, &|run| run);
    let graphs = |scope| GraphOptions { scope, ..GraphOptions::default() };
    for scope in Scope::ALL {
        let beside = |run: Run| Run { overlaps: true, graphs: graphs(scope), ..run };
        assert!(train(stages, &beside) == in_turn, "{scope:?}");
    }
}

#[test]
fn a_rank_that_gets_all_rows_and_a_rank_that_gets_none_train_alike() {
    let capacity = Some(Capacity { factor: 1.25, keeps: Keeps::HighestWeights });
    for (name, per_token, capacity, value) in [
        ("all tokens to the first rank", 2, None, (|expert| if expert < 2 { 1.0 } else { -1.0 }) as fn(usize) -> f32),
        ("one expert of the second rank", 1, None, |expert| if expert == 3 { 1.0 } else { 0.0 }),
        ("ties", 2, None, |_| 0.0),
        ("with a capacity", 2, capacity, |expert| 0.01 * expert as f32),
    ] {
        let balance = Some(BalanceLoss { multiplier: 0.1, over: BalanceGroup::Microbatch });
        let experts = Some(Experts { per_token, balance, capacity, ..FOUR });
        let shape = GptShape { experts, ..tiny_llama(0.0, Precision::F32) };
        let train = |layout: Layout| {
            layout.on_ranks(
                || run_of(&shape, 2, GraphOptions { poison: true, ..GraphOptions::default() }),
                |run| {
                    let mut stage: Stage = run.stage(&run.device());
                    set_routers(&stage, value);
                    run.train_stage(&mut stage)
                },
            )
        };
        let expected = train(Layout::new(1, 1, 1, 2));
        for results in train(pairs(2)) {
            assert_close(name, &results, &expected[0]);
        }
    }
}

#[test]
fn a_step_whose_rows_need_more_room_than_the_budget_is_run_again_to_the_same_bits() {
    let run_with = |layout: Layout, row_budget: Option<f64>, graphs: GraphOptions| {
        let mut shape = tiny_balanced();
        let experts = shape.experts.as_mut().unwrap();
        (experts.row_budget, experts.bias_update_rate) = (row_budget, Some(0.05));
        let skip_step = Some(SkipStep { sigma_factor: 3.0, interval: 4 });
        let run = || Run { skip_step, distributed_optimizer: true, ..run_of(&shape, 2, graphs.clone()) };
        let mut all = layout.on_ranks(run, |run| run.train());
        let again: Vec<Vec<bool>> = all
            .iter_mut()
            .map(|(results, _)| results.iter_mut().map(|step| std::mem::take(&mut step.ran_again)).collect())
            .collect();
        assert_eq!(again[0], again[1], "ranks agree");
        (all, again[0].clone())
    };
    let (expected, none) = run_with(pairs(2), Some(2.0), off());
    assert!(!none.contains(&true));
    let direct = Layout { moves_rows: true, ..pairs(2) };
    let scopes = Scope::ALL.map(|scope| GraphOptions { scope, poison: true, ..GraphOptions::default() });
    for (layout, graphs) in
        [pairs(2), direct].into_iter().flat_map(|layout| scopes.clone().map(|scope| (layout, scope)))
    {
        let (all, again) = run_with(layout, Some(1.0), graphs.clone());
        assert!(again.contains(&true) && all == expected, "{layout:?}, {:?}: {again:?}", graphs.scope);
        let (all, again) = run_with(layout, Some(2.0), graphs);
        assert!(!again.contains(&true) && all == expected, "{layout:?}: {again:?}");
    }
}

/// The scales of the first step follow from its own values, those of later ones from steps before.
#[test]
fn delayed_scales_forget_a_step_that_is_run_again() {
    let train = |layout: Layout, row_budget: Option<f64>, graphs: GraphOptions| {
        let mut shape = super::fp8::shape(0.0, Some(Fp8Recipe::Delayed));
        shape.experts.as_mut().unwrap().row_budget = row_budget;
        let results = layout.on_ranks(
            || run_of(&shape, 2, graphs.clone()),
            |run| {
                let (results, weights) = run.train();
                let again: Vec<bool> = results.iter().map(|step| step.ran_again).collect();
                (again, weights)
            },
        );
        results.into_iter().unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (_, expected) = train(pairs(2), Some(2.0), off());
    for layout in [pairs(2), Layout { moves_rows: true, ..pairs(2) }] {
        let (again, weights) = train(layout, Some(1.0), GraphOptions { poison: true, ..GraphOptions::default() });
        assert!(again[0][0] && again[0] == again[1] && weights == expected, "{layout:?}: {again:?}");
    }
}

#[test]
fn ranks_without_a_communicator_between_experts_are_refused() {
    // Connected for microbatches in turn.
    let layout = Layout { expert: 2, ..Layout::new(1, 2, 1, 2) };
    let run = || run_of(&tiny_shared(0.0, BalanceGroup::Sequence), 2, off());
    let refused = |run: Run| {
        let run = Run { overlaps: true, ..run };
        run.try_stage(&run.device()).err().map(|error| error.to_string())
    };
    for error in layout.on_ranks(run, refused) {
        let error = error.unwrap();
        assert!(error.contains("ranks that have other experts"), "{error}");
    }
}
