//! A balance loss over the global batch: the loads of all ranks, and of the step's microbatches so far.

use engine::graph_options::{GraphModule, GraphOptions, GraphSelection};
use engine::model::{BalanceGroup, GptShape};
use engine::precision::Precision;
use engine::step::StepResult;

use crate::experts::{numbers, run_of, tiny_experts, tiny_shared};
use crate::models::{Kind, Layout, MICRO_BATCH, Run, all_settings, assert_graphs_change_no_bit, batch, off};

/// Four blocks of which two have experts.
pub fn tiny_balanced() -> GptShape {
    let mut shape = tiny_experts(Precision::F32);
    shape.experts.as_mut().unwrap().balance.as_mut().unwrap().over = BalanceGroup::GlobalBatch;
    shape
}

/// The first step on the first samples, with so many sequences in a microbatch.
fn first_step(run: Run, sequences: usize) -> StepResult {
    let run = Run { micro_batch_size: sequences, ..run };
    let settings = run.settings(0);
    let samples = batch(Kind::Gpt, settings.first_sample, run.microbatches * sequences / MICRO_BATCH);
    run.stage(&run.device()).train_step(settings, Some(&samples)).unwrap().wait().unwrap()
}

fn assert_close(ours: &StepResult, theirs: &StepResult) {
    let pairs: Vec<_> = numbers(ours).into_iter().zip(numbers(theirs)).collect();
    assert!(pairs.iter().all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{pairs:?}");
}

#[test]
fn two_ranks_with_a_microbatch_each_have_the_loss_of_one_microbatch_with_the_samples_of_both() {
    let shape = |over| tiny_shared(0.0, over);
    let alone = Run { microbatches: 1, ..run_of(&shape(BalanceGroup::Microbatch), 1, off()) };
    let whole = first_step(alone, 2 * MICRO_BATCH);
    let on_two_ranks = |over| {
        let run = || Run { microbatches: 1, ..run_of(&shape(over), 2, GraphOptions::default()) };
        Layout::new(1, 1, 1, 2).on_ranks(run, |run| first_step(run, MICRO_BATCH))
    };
    for result in on_two_ranks(BalanceGroup::GlobalBatch) {
        assert_close(&result, &whole);
    }
    // The losses of parts are larger than that of the whole.
    for result in on_two_ranks(BalanceGroup::Microbatch) {
        assert!(result.added["balance_loss"] > whole.added["balance_loss"] * 1.001, "{result:?} {whole:?}");
    }
}

#[test]
fn a_global_balance_loss_has_the_same_bits_in_every_setting() {
    let shape = tiny_balanced();
    let data = Layout::new(1, 1, 1, 2);
    let train = |graphs: GraphOptions| {
        let run = || Run { distributed_optimizer: true, ..run_of(&shape, 2, graphs.clone()) };
        data.on_ranks(run, |run| run.train())
    };
    let only = GraphSelection { modules: [GraphModule::ROUTER].into(), ..GraphSelection::default() };
    let halves = ("halves".into(), GraphOptions { only, poison: true, ..GraphOptions::default() });
    let settings = [&all_settings()[1..], &[halves]].concat();
    assert_graphs_change_no_bit("balance", &settings, train);
}

#[test]
fn backwards_that_compute_blocks_again_count_their_loads_once() {
    let shape = tiny_balanced();
    let full = |data| move || Run { recompute: Some(2), ..run_of(&tiny_balanced(), data, GraphOptions::default()) };
    let plain = run_of(&shape, 1, off()).train();
    assert!(full(1)().train() == plain);
    // Two blocks share a bucket then, so norms are summed in another order.
    let data = Layout::new(1, 1, 1, 2);
    let plain = data.on_ranks(|| run_of(&shape, 2, off()), |run| run.train().0);
    for results in data.on_ranks(full(2), |run| run.train().0) {
        results.iter().zip(&plain[0]).for_each(|(ours, theirs)| assert_close(ours, theirs));
    }
}

#[test]
fn layouts_of_a_batch_that_ranks_divide_alike_have_the_same_global_loss() {
    let shape = tiny_balanced();
    let train = |layout: Layout| {
        let graphs = || GraphOptions { poison: true, ..GraphOptions::default() };
        layout.on_ranks(|| run_of(&shape, layout.data, graphs()), |run| run.train().0)
    };
    for (data, layouts) in [
        (1, vec![Layout::new(2, 1, 1, 1), Layout::new(1, 2, 2, 1), Layout::new(1, 4, 1, 1)]),
        (2, vec![Layout::new(2, 1, 1, 2), Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 2) }]),
    ] {
        let expected = train(Layout::new(1, 1, 1, data));
        for layout in layouts {
            for results in train(layout) {
                results.iter().zip(&expected[0]).for_each(|(ours, theirs)| assert_close(ours, theirs));
            }
        }
    }
}

#[test]
fn ranks_without_a_communicator_for_loads_are_refused() {
    // Connected for a model without such a loss.
    let run = || run_of(&tiny_experts(Precision::F32), 2, GraphOptions::default());
    let refused = |run: Run| {
        let run = Run { shape: Some(tiny_balanced()), ..run };
        run.try_stage(&run.device()).err().map(|error| error.to_string())
    };
    for error in Layout::new(1, 1, 1, 2).on_ranks(run, refused) {
        assert!(error.unwrap().contains("add the group to Connections::groups"));
    }
}
