//! Graphs of some modules or layers only: their names, and that the numbers stay the same bits.

use std::collections::BTreeMap;

use engine::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step_policy::{StepPolicy, StepShape};
use graph_manager::{Mempool, Report};

use crate::models::{Kind, Layout, Run, tiny_gpt, tiny_llama};

const EMBEDDING: GraphModule = GraphModule::EMBEDDING;
const ATTENTION: GraphModule = GraphModule::ATTENTION;
const FEED_FORWARD: GraphModule = GraphModule::FEED_FORWARD;
const HEAD: GraphModule = GraphModule::HEAD;
const ALL: [GraphModule; 4] = [EMBEDDING, ATTENTION, FEED_FORWARD, HEAD];

pub fn only(modules: &[GraphModule], layers: &[usize]) -> GraphSelection {
    GraphSelection { modules: modules.iter().copied().collect(), layers: layers.iter().copied().collect() }
}

/// Choices in a model of two blocks: layers 0 to 3.
fn selections() -> Vec<GraphSelection> {
    vec![
        only(&[ATTENTION], &[]),
        only(&[FEED_FORWARD], &[]),
        only(&[ATTENTION, FEED_FORWARD], &[]),
        only(&[EMBEDDING, HEAD], &[]),
        only(&[], &[2]),
        only(&[ATTENTION, HEAD], &[1, 3]),
    ]
}

/// Graphs off, whole layers, and each selection. Poison shows any stray read. The code of replayed regions is compared with
/// their graphs.
fn settings(mempool: Mempool) -> Vec<GraphOptions> {
    choices(mempool, selections())
}

/// As [`settings`], with other selections.
pub fn choices(mempool: Mempool, selections: Vec<GraphSelection>) -> Vec<GraphOptions> {
    let layers = GraphOptions { mempool, poison: true, check_replays: true, ..GraphOptions::default() };
    let off = GraphOptions { enable: false, mempool, ..GraphOptions::default() };
    let chosen = selections.into_iter().map(|only| GraphOptions { only, ..layers.clone() });
    [off, layers.clone()].into_iter().chain(chosen).collect()
}

/// Fails unless every rank's results and weights are the same bits in all settings.
pub fn assert_same_bits(
    what: &str,
    layout: &Layout,
    settings: &[GraphOptions],
    run: impl Fn(GraphOptions) -> Run + Sync,
) {
    let train = |graphs: &GraphOptions| layout.on_ranks(|| Run { steps: 5, ..run(graphs.clone()) }, |run| run.train());
    let eager = train(&settings[0]);
    let results = || eager.iter().flat_map(|(results, _)| results);
    assert!(results().all(|result| result.loss.is_finite() && result.applied), "{what}");
    for graphs in &settings[1..] {
        assert!(train(graphs) == eager, "{what}: {graphs:?}");
    }
}

const BOTH: [Mempool; 2] = [Mempool::PerMicrobatch, Mempool::Single];
const KINDS: [Kind; 2] = [Kind::Gpt, Kind::Llama];

fn shape(kind: Kind, recompute: bool) -> Option<GptShape> {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    Some(GptShape { recompute, ..own(0.1, Precision::F32) })
}

#[test]
fn every_choice_has_the_bits_of_graphs_off_for_any_number_of_microbatches() {
    for kind in KINDS {
        for microbatches in [1, 4] {
            for mempool in BOTH {
                let what = format!("{kind:?}, M={microbatches}, {mempool:?}");
                let run = |graphs| Run::new(kind, microbatches, graphs);
                assert_same_bits(&what, &Layout::new(1, 1, 1, 1), &settings(mempool), run);
            }
        }
    }
}

#[test]
fn copies_at_the_borders_of_module_graphs_change_no_bit() {
    for kind in KINDS {
        let settings: Vec<GraphOptions> = settings(Mempool::PerMicrobatch)
            .into_iter()
            .map(|graphs| GraphOptions { share_io_buffers: false, ..graphs })
            .collect();
        let run = |graphs| Run::new(kind, 3, graphs);
        assert_same_bits(&format!("{kind:?}"), &Layout::new(1, 1, 1, 1), &settings, run);
    }
}

#[test]
fn selective_recompute_works_within_a_module_graph() {
    for kind in KINDS {
        for mempool in BOTH {
            let run = |graphs| Run { shape: shape(kind, true), ..Run::new(kind, 3, graphs) };
            assert_same_bits(&format!("{kind:?}, {mempool:?}"), &Layout::new(1, 1, 1, 1), &settings(mempool), run);
        }
    }
}

#[test]
fn ranks_that_share_layers_have_the_same_bits_with_and_without_sequence_parallelism() {
    for kind in KINDS {
        for sequence in [true, false] {
            let layout = Layout { sequence, ..Layout::new(2, 1, 1, 1) };
            let run = |graphs| Run { shape: shape(kind, false), ..Run::new(kind, 3, graphs) };
            let what = format!("{kind:?}, sequence {sequence}");
            assert_same_bits(&what, &layout, &settings(Mempool::PerMicrobatch), run);
        }
    }
}

#[test]
fn gradients_are_reduced_and_weights_gathered_around_module_graphs() {
    for (kind, microbatches, distributed_optimizer) in
        [(Kind::Gpt, 1, false), (Kind::Llama, 3, false), (Kind::Gpt, 3, true), (Kind::Llama, 1, true)]
    {
        let run =
            |graphs| Run { shape: shape(kind, false), distributed_optimizer, ..Run::new(kind, microbatches, graphs) };
        let what = format!("{kind:?}, M={microbatches}, distributed optimizer {distributed_optimizer}");
        assert_same_bits(&what, &Layout::new(1, 1, 1, 2), &settings(Mempool::PerMicrobatch), run);
    }
}

#[test]
fn stages_of_every_schedule_have_the_same_bits_and_can_rehearse() {
    let stages = Layout::new(1, 2, 1, 1);
    let zero_bubble = Layout { zero_bubble: true, ..stages };
    for (kind, layout, mempool) in [
        (Kind::Gpt, stages, Mempool::PerMicrobatch),
        (Kind::Llama, stages, Mempool::Single),
        (Kind::Gpt, zero_bubble, Mempool::Single),
        (Kind::Llama, zero_bubble, Mempool::PerMicrobatch),
        (Kind::Gpt, Layout::new(1, 2, 2, 1), Mempool::PerMicrobatch),
    ] {
        // A chunk needs a block.
        let layers = layout.parts().max(2);
        let run = |graphs| Run {
            shape: shape(kind, false).map(|shape| GptShape { layers, ..shape }),
            rehearses: mempool == Mempool::PerMicrobatch,
            ..Run::new(kind, 4, graphs)
        };
        assert_same_bits(&format!("{kind:?}, {layout:?}"), &layout, &settings(mempool), run);
    }
}

#[test]
fn everything_at_once_has_the_same_bits() {
    let layout = Layout { zero_bubble: true, ..Layout::new(2, 2, 1, 2) };
    let run = |graphs| Run {
        shape: shape(Kind::Gpt, true),
        distributed_optimizer: true,
        rehearses: true,
        ..Run::new(Kind::Gpt, 3, graphs)
    };
    assert_same_bits("tp2 pp2 dp2", &layout, &settings(Mempool::PerMicrobatch), run);
}

#[test]
fn one_layer_of_an_mlp_is_a_graph_and_the_bits_stay() {
    let settings: Vec<GraphOptions> =
        [GraphOptions { enable: false, ..GraphOptions::default() }, GraphOptions::default()]
            .into_iter()
            .chain([0, 1, 2, 3].map(|layer| GraphOptions { only: only(&[], &[layer]), ..GraphOptions::default() }))
            .collect();
    assert_same_bits("mlp", &Layout::new(1, 1, 1, 1), &settings, |graphs| Run::new(Kind::Mlp, 3, graphs));
    let graphs = GraphOptions { only: only(&[], &[1]), ..GraphOptions::default() };
    let (report, _) = captured(&Run::new(Kind::Mlp, 3, graphs));
    assert_eq!(
        of_layers(&report),
        ["forward of layer 1, microbatch 0", "backward of layer 1, microbatch 0", "backward of layer 1, microbatch 1"]
    );
}

/// The names of the graphs of layers and modules, without those of the reduction and the optimizer.
pub fn of_layers(report: &Report) -> Vec<&str> {
    report.graphs.iter().map(|graph| graph.name.as_str()).filter(|name| name.contains(" of layer ")).collect()
}

/// The captures of three training steps, and the number of graphs that was foretold.
pub fn captured(run: &Run) -> (Report, usize) {
    let device = run.device();
    let mut stage = run.stage(&device);
    (0..3).for_each(|step| _ = run.step(&mut stage, run.settings(step)));
    (stage.graphs().report(), stage.graphs().expected_graphs(Mode::Train.into()))
}

#[test]
fn the_graphs_are_those_that_the_choice_names_and_the_report_says_why_the_rest_is_eager() {
    // Two blocks; one microbatch in flight. Backwards of blocks and head, and the head's forward, have a graph for the first
    // microbatch too.
    let cases: [(GraphSelection, usize, &[&str]); 8] = [
        (only(&[], &[]), 12, &[]),
        (only(&ALL, &[]), 12, &[]),
        (only(&[ATTENTION], &[]), 6, &["mlp forward (it is not", "forward (the embedding is not", "(the head is not"]),
        (only(&[FEED_FORWARD], &[]), 6, &["attention backward (it is not among the chosen modules)"]),
        (only(&[ATTENTION, FEED_FORWARD], &[]), 6, &["backward (the embedding is not among the chosen modules)"]),
        (only(&[EMBEDDING, HEAD], &[]), 6, &["forward (no module of its block is among the chosen ones)"]),
        (only(&[], &[2]), 3, &["forward (its layer is not among the chosen ones)"]),
        (only(&[ATTENTION], &[2]), 3, &["mlp backward", "forward (its layer is not among the chosen ones)"]),
    ];
    for (only, graphs, reasons) in cases {
        let options = GraphOptions { only: only.clone(), ..GraphOptions::default() };
        let (report, expected) = captured(&Run::new(Kind::Gpt, 4, options));
        assert_eq!(of_layers(&report).len(), graphs, "{only:?}: {report}");
        assert_eq!(report.graphs.len(), expected, "{only:?}: {report}");
        let line = report.to_string();
        assert!(reasons.iter().all(|reason| line.contains(reason)), "{only:?}: {line}");
        assert!(!line.contains("it is made of regions"), "{line}");
    }
}

#[test]
fn a_module_graph_is_named_for_its_module_and_holds_its_operations_alone() {
    let nodes = |modules: &[GraphModule]| -> BTreeMap<String, Vec<String>> {
        let options = GraphOptions { only: only(modules, &[]), ..GraphOptions::default() };
        let (report, _) = captured(&Run::new(Kind::Gpt, 2, options));
        report.graphs.into_iter().map(|graph| (graph.name, graph.nodes)).collect()
    };
    let (whole, attention, mlp) = (nodes(&[]), nodes(&[ATTENTION]), nodes(&[FEED_FORWARD]));
    for pass in ["forward", "backward"] {
        for layer in [1, 2] {
            let place = format!("{pass} of layer {layer}, microbatch 0");
            let operations = |nodes: &[String]| -> Vec<String> {
                nodes.iter().map(|node| node.rsplit('/').next().unwrap().to_string()).collect()
            };
            let mut parts = [&attention[&format!("attention {place}")], &mlp[&format!("mlp {place}")]];
            if pass == "backward" {
                parts.reverse();
            }
            let mut joined: Vec<String> = parts.iter().flat_map(|nodes| operations(nodes)).collect();
            if pass == "backward" {
                // The first module adds up the gradients of its norm. A whole block does that for all norms at once.
                let sums = joined.iter().position(|node| node == "add_partial_columns").unwrap();
                joined.remove(sums);
            }
            assert_eq!(joined, operations(&whole[&place]), "{place}");
        }
    }
}

#[test]
fn naming_all_modules_gives_the_graphs_and_the_memory_of_naming_none() {
    for scope in Scope::ALL {
        let run = |only| Run::new(Kind::Llama, 4, GraphOptions { scope, only, ..GraphOptions::default() });
        let (default, _) = captured(&run(GraphSelection::default()));
        let named = if scope == Scope::PerLayer { only(&ALL, &[0, 1, 2, 3]) } else { GraphSelection::default() };
        let (all, _) = captured(&run(named));
        // The driver rounds up what it takes.
        let text = |report: &Report| serde_json::to_string(&Report { driver_bytes: None, ..report.clone() }).unwrap();
        assert_eq!(text(&all), text(&default), "{scope:?}");
    }
}

#[test]
fn deferred_weight_gradients_of_a_module_are_a_graph_of_its_own() {
    let layout = Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 1) };
    let graphs = GraphOptions { only: only(&[ATTENTION], &[]), ..GraphOptions::default() };
    let run = || Run { shape: shape(Kind::Gpt, false), steps: 3, ..Run::new(Kind::Gpt, 4, graphs.clone()) };
    let reports = layout.on_ranks(run, |run| {
        let (_, mut stage) = run.train_on(&run.device());
        stage.graphs().report()
    });
    for (report, layer) in reports.iter().zip([1, 2]) {
        let place = format!("attention weights of layer {layer}, microbatch 0");
        let of_module: Vec<_> = report.graphs.iter().filter(|graph| graph.name.starts_with(&place)).collect();
        assert!(!of_module.is_empty() && of_module.iter().all(|graph| !graph.nodes.is_empty()), "{report}");
        assert!(report.to_string().contains("mlp weights (it is not among the chosen modules)"), "{report}");
    }
}

#[test]
fn a_choice_that_the_scope_or_the_model_does_not_have_is_refused() {
    let device = Run::new(Kind::Gpt, 1, GraphOptions::default()).device();
    let by_layer = [&ALL[..1], &ALL[1..3], &ALL[1..3], &ALL[3..]].map(<[_]>::to_vec).to_vec();
    let shape = StepShape { layers: 4, modules: by_layer, ..StepShape::default() };
    let refused = |scope, only: &GraphSelection, shape: &StepShape| {
        let options = GraphOptions { scope, only: only.clone(), ..GraphOptions::default() };
        let off = GraphOptions { enable: false, ..options.clone() };
        assert!(StepPolicy::manager(device.stream("compute"), &off, shape.clone()).is_ok(), "{off:?}");
        match StepPolicy::manager(device.stream("compute"), &options, shape.clone()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let without_modules = StepShape { modules: Vec::new(), ..shape.clone() };
    let recomputed = StepShape { recomputes_blocks: true, ..shape.clone() };
    for (scope, only, shape, words) in [
        (Scope::FullIteration, only(&[ATTENTION], &[]), &shape, "under FullIteration the whole step is one graph"),
        (Scope::FullIteration, only(&[], &[1]), &shape, "under FullIteration"),
        (Scope::PerChunk, only(&[ATTENTION], &[]), &shape, "under PerChunk a whole chunk of layers is one graph"),
        (Scope::PerChunk, only(&[], &[1]), &shape, "under PerChunk"),
        (Scope::PerLayer, only(&[], &[4]), &shape, "the chosen layer 4 is not in the model, which has 4"),
        (Scope::PerLayer, only(&[HEAD], &[]), &without_modules, "the chosen module `head` is not in the model"),
        (Scope::PerLayer, only(&[FEED_FORWARD], &[]), &recomputed, "where backward recomputes whole blocks"),
    ] {
        let error = refused(scope, &only, shape);
        assert!(error.contains(words), "{only:?}: {error}");
    }
    for only in [only(&[ATTENTION, FEED_FORWARD], &[]), only(&[HEAD], &[]), only(&[], &[1])] {
        assert_eq!(refused(Scope::PerLayer, &only, &recomputed), "");
    }
}
