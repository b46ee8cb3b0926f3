//! Data-parallel ranks: graphs change no bit of any of them.

mod context;
mod distributed_optimizer;
mod grad_reduce;
mod one_sequence;
mod pipeline;
mod tensor_parallel;
mod zero_bubble;

use engine::graph_options::{GraphOptions, Scope};
use engine::step::StepResult;

use crate::models::{Kind, Layout, Run, Trained, all_settings, assert_graphs_change_no_bit};

/// Microbatches of all ranks together.
const GLOBAL: usize = 4;

/// Trains on `ranks` threads; every rank must see the same numbers and end with the same weights.
fn train(kind: Kind, ranks: usize, graphs: &GraphOptions, shuffle: Option<u64>) -> Trained {
    let run = || Run { shuffle, ..Run::new(kind, GLOBAL / ranks, graphs.clone()) };
    let mut results = Layout::new(1, 1, 1, ranks).on_ranks(run, |run| run.train());
    let first = results.pop().unwrap();
    for other in results {
        assert_eq!(other.0, first.0, "ranks disagree on the losses");
        assert!(other.1 == first.1, "ranks disagree on the weights");
    }
    first
}

#[test]
fn captured_reductions_change_no_bit_in_any_setting() {
    assert_graphs_change_no_bit("2 ranks", &all_settings()[1..], |graphs| train(Kind::Gpt, 2, &graphs, None));
}

/// The results on a rank of a short run and evaluations after it: losses, norms and weights.
type Bits = (Vec<StepResult>, Vec<u64>, Vec<u32>);

/// Trains and evaluates on two ranks; also how many launches of training and of evaluation ran in an order of their own.
fn replayed(divided: bool, graphs: &GraphOptions, shuffle: Option<u64>) -> Vec<(Bits, [u64; 2])> {
    let run = || Run { shuffle, steps: 4, distributed_optimizer: divided, ..Run::new(Kind::Gpt, 2, graphs.clone()) };
    let on_rank = |run: Run| {
        let device = run.device();
        device.shuffle_replays(shuffle);
        let mut stage = run.stage(&device);
        stage.record(run.microbatches, true).unwrap();
        let results = run.train_stage(&mut stage);
        let trained = device.reordered_launches();
        let losses = (0..4).map(|step| run.evaluate(&mut stage, run.settings(step)).loss.to_bits()).collect();
        let weights = stage.params().iter().flat_map(|(_, param)| device.download::<f32>(&param.master).unwrap());
        ((results, losses, weights.map(f32::to_bits).collect()), [trained, device.reordered_launches() - trained])
    };
    Layout::new(1, 1, 1, 2).on_ranks(run, on_rank)
}

/// Random orders that are tried until one of an evaluation differs from that of capture.
const MOST_SEEDS: u64 = 8;

#[test]
fn replays_that_really_ran_in_another_order_change_no_bit_in_any_setting() {
    let settings = all_settings();
    for divided in [false, true] {
        let plain = replayed(divided, &settings[0].1, None);
        assert!(plain.iter().all(|(_, reordered)| *reordered == [0, 0]));
        for (name, options) in &settings[1..] {
            // Of an evaluation only the gathers of a distributed optimizer are on another stream. In larger graphs each layer
            // waits for one, and a node that waits lets transfers go first, as they do in the order of capture.
            let may_differ = divided && options.scope == Scope::PerLayer;
            let (mut trained, mut evaluated) = (0, 0);
            for seed in 0..MOST_SEEDS {
                if seed >= 2 && (!may_differ || evaluated > 0) {
                    break;
                }
                let shuffled = replayed(divided, options, Some(seed));
                for ((plain, _), (bits, reordered)) in plain.iter().zip(&shuffled) {
                    assert!(plain == bits, "{name}, divided {divided}, seed {seed}");
                    trained += reordered[0];
                    evaluated += reordered[1];
                }
            }
            assert!(trained > 0, "{name}, divided {divided}: every launch had the order of capture");
            assert!(!may_differ || evaluated > 0, "{name}: every evaluation had the order of capture");
        }
    }
}

#[test]
fn twenty_random_replay_orders_of_every_graph_change_no_bit() {
    for kind in [Kind::Gpt, Kind::Mlp] {
        for scope in engine::graph_options::Scope::ALL {
            // Every step replays every graph in another random order that its dependencies allow.
            let options = GraphOptions { scope, ..GraphOptions::default() };
            let plain = train(kind, 2, &options, None);
            for seed in 0..2 {
                assert!(train(kind, 2, &options, Some(seed)) == plain, "{kind:?} {scope:?} seed {seed}");
            }
        }
    }
}

#[test]
fn the_last_microbatch_has_reducing_graphs_of_its_own() {
    let run = || Run { steps: 3, ..Run::new(Kind::Gpt, GLOBAL, GraphOptions::default()) };
    Layout::new(1, 1, 1, 2).on_ranks(run, |run| {
        let (_, mut stage) = run.train_on(&run.device());
        let report = stage.graphs().report();
        // Forward and two backwards of four layers: of the first microbatch and the others; the embedding's does the same in
        // all. Of blocks and embedding one that reduces the gradients that the layer after it completed. The head's forward of
        // the first microbatch, the tail and the optimizer.
        let layers = 4 + (2 + 2 + 2 + 1) + 2;
        assert_eq!(report.graphs.len(), layers + 3, "{report}");
        let hidden = report.graphs.iter().filter(|graph| graph.nodes.iter().any(|n| n.contains("reduce"))).count();
        assert!(hidden >= 3, "reductions must run inside backward graphs: {report}");
    });
}

#[test]
fn in_the_graph_of_a_chunk_no_backward_waits_for_a_reduction() {
    for distributed_optimizer in [false, true] {
        let run = || {
            let graphs = GraphOptions { scope: Scope::PerChunk, ..GraphOptions::default() };
            Run { steps: 3, distributed_optimizer, ..Run::new(Kind::Gpt, 2, graphs) }
        };
        let reports = Layout::new(1, 1, 1, 2).on_ranks(run, |run| {
            let (_, mut stage) = run.train_on(&run.device());
            stage.graphs().report()
        });
        let reduces = |node: &str| node.contains("/reduce_scatter") || node.contains("/all_reduce");
        let is_last = |name: &str| name == "backward of layers 0 to 3, microbatch 1";
        let graph = reports[0].graphs.iter().find(|graph| is_last(&graph.name)).unwrap();
        let reductions: Vec<usize> = (0..graph.nodes.len()).filter(|&at| reduces(&graph.nodes[at])).collect();
        // That of the last bucket is in the region `reduce`.
        assert!(reductions.len() > 1, "{:?}", graph.nodes);
        let after_reductions = graph.waits_for(&reductions);
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| !reductions.contains(at)) {
            assert!(!after_reductions[at], "{node} waits for a reduction");
        }
    }
}

#[test]
fn in_one_graph_no_backward_waits_for_a_reduction_and_no_forward_for_the_weights_of_later_layers() {
    for distributed_optimizer in [false, true] {
        let run = || {
            let graphs = GraphOptions { scope: Scope::FullIteration, ..GraphOptions::default() };
            Run { steps: 3, distributed_optimizer, ..Run::new(Kind::Gpt, 2, graphs) }
        };
        let reports = Layout::new(1, 1, 1, 2).on_ranks(run, |run| {
            let (_, mut stage) = run.train_on(&run.device());
            stage.graphs().report()
        });
        let graph = &reports[0].graphs[0];
        let of_kind = |kind: &str| -> Vec<usize> {
            (0..graph.nodes.len()).filter(|&at| graph.nodes[at].ends_with(kind)).collect()
        };
        let reductions = of_kind(if distributed_optimizer { "/reduce_scatter" } else { "/all_reduce" });
        assert!(reductions.len() > 2, "{:?}", graph.nodes);
        let after_reductions = graph.waits_for(&reductions);
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| !reductions.contains(at)) {
            assert!(!(after_reductions[at] && node.contains("backward of layer")), "{node} waits for a reduction");
        }
        if distributed_optimizer {
            let gathers = of_kind("/all_gather");
            assert!(gathers.len() > 2, "{:?}", graph.nodes);
            let first_layer_after = |gather: usize| {
                let waits = graph.waits_for(&[gather]);
                let layers = (0..20).filter(|layer| {
                    let name = format!("forward of layer {layer}, microbatch 0/");
                    graph.nodes.iter().zip(&waits).any(|(node, waits)| *waits && node.contains(&name))
                });
                layers.min().unwrap()
            };
            let layers: Vec<usize> = gathers.iter().map(|&gather| first_layer_after(gather)).collect();
            assert!(
                layers[0] == 0 && layers.is_sorted_by(|a, b| a < b),
                "layers wait for gathers in the order {layers:?}"
            );
        }
    }
}
