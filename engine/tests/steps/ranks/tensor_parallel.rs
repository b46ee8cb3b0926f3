//! Ranks that share layers: no graph and no order changes a bit, and each has its part of one rank's weights and memory.

use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::StepResult;
use graph_manager::Mempool;

use crate::models::{Kind, Layout, Run, off, tiny_gpt, tiny_llama};

/// Microbatches of all ranks together.
const GLOBAL: usize = 4;
const STEPS: usize = 6;

/// Enough heads for four ranks; dropout, so that a mask that depends on the layout would show.
fn shape(kind: Kind, precision: Precision) -> GptShape {
    match kind {
        Kind::Llama => GptShape { heads: 8, kv_heads: 4, recompute: true, ..tiny_llama(0.1, precision) },
        _ => tiny_gpt(0.1, precision),
    }
}

fn run(kind: Kind, data: usize, precision: Precision, graphs: &GraphOptions) -> Run {
    let shape = Some(shape(kind, precision));
    Run { shape, precision, steps: STEPS, ..Run::new(kind, GLOBAL / data, graphs.clone()) }
}

/// Trains on a thread for each rank. Returns the results, the same on all ranks, and each rank's weights.
fn train(
    kind: Kind,
    layout: Layout,
    precision: Precision,
    graphs: &GraphOptions,
    shuffle: Option<u64>,
) -> (Vec<StepResult>, Vec<Vec<u32>>) {
    let Layout { tensor, data, .. } = layout;
    let run = || Run { shuffle, ..run(kind, data, precision, graphs) };
    let mut results: Vec<_> = layout.on_ranks(run, |run| run.train());
    let all: Vec<StepResult> = results[0].0.clone();
    assert!(results.iter().all(|(result, _)| *result == all), "{layout:?}: ranks disagree on the numbers");
    for rank in tensor..layout.ranks() {
        assert!(results[rank].1 == results[rank % tensor].1, "{layout:?}: ranks of a data-parallel group disagree");
    }
    results.truncate(tensor);
    (all, results.into_iter().map(|(_, weights)| weights).collect())
}

#[test]
fn graphs_change_no_bit_of_a_shared_model() {
    for (kind, sequence) in [(Kind::Gpt, true), (Kind::Gpt, false), (Kind::Llama, true)] {
        let layout = Layout { sequence, ..Layout::new(2, 1, 1, 2) };
        let plain = train(kind, layout, Precision::F32, &off(), None);
        for scope in Scope::ALL {
            for (mempool, share_io_buffers) in [(Mempool::PerMicrobatch, true), (Mempool::Single, false)] {
                let graphs = GraphOptions { scope, mempool, share_io_buffers, poison: true, ..GraphOptions::default() };
                let captured = train(kind, layout, Precision::F32, &graphs, None);
                assert!(captured == plain, "{kind:?} {layout:?} {scope:?} {mempool:?}");
            }
        }
    }
}

#[test]
fn random_replay_orders_change_no_bit_of_a_shared_model() {
    let layout = Layout::new(2, 1, 1, 2);
    for scope in Scope::ALL {
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let plain = train(Kind::Llama, layout, Precision::F32, &graphs, None);
        for seed in 0..3 {
            assert!(train(Kind::Llama, layout, Precision::F32, &graphs, Some(seed)) == plain, "{scope:?} seed {seed}");
        }
    }
}

#[test]
fn first_weights_are_the_parts_of_one_ranks() {
    for kind in [Kind::Gpt, Kind::Llama] {
        let whole = run(kind, 1, Precision::F32, &off());
        let device = whole.device();
        let stage = whole.stage(&device);
        let weights: Vec<Vec<f32>> =
            stage.params().iter().map(|(_, param)| device.download::<f32>(&param.master).unwrap()).collect();
        Layout::new(4, 1, 1, 1).on_ranks(
            || run(kind, 1, Precision::F32, &off()),
            |part| {
                let device = part.device();
                let stage = part.stage(&device);
                for ((spec, param), whole) in stage.params().iter().zip(&weights) {
                    let here = device.download::<f32>(&param.master).unwrap();
                    assert_eq!(here, spec.stored_values(|at| whole[at]), "{} on rank {}", spec.name, part.ranks.rank());
                }
            },
        );
    }
}

#[test]
fn no_rank_holds_more_than_its_part_of_logits_heads_and_channels() {
    // A buffer of a whole row of logits, or of all heads or channels, would be found in the plan by its size.
    let whole = || run(Kind::Llama, 1, Precision::F32, &off());
    let widths = |run: Run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        stage.record(GLOBAL, true).unwrap();
        let total: usize = stage.graphs().memory().iter().map(|area| area.bytes).sum();
        (stage.params().grads.bytes(), total)
    };
    let (parameters, activations) = widths(whole());
    let halves = Layout::new(4, 1, 1, 1).on_ranks(whole, widths);
    for (part, area) in halves {
        assert!(part * 3 < parameters, "{part} of {parameters} bytes of parameters on one of 4 ranks");
        assert!(area * 2 < activations, "{area} of {activations} bytes of activations on one of 4 ranks");
    }
}
