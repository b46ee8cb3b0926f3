//! Graphs of a layer of experts, of its first half only, and of other modules of blocks with experts.

use std::collections::BTreeMap;

use engine::graph_options::{GraphModule, GraphOptions, GraphSelection};
use engine::model::{AttentionKind, GptShape, NormPlacement};
use engine::precision::Precision;
use engine::step_policy::{StepPolicy, StepShape};
use graph_manager::{Mempool, Report};

use crate::experts::{tiny_experts, tiny_mixtral};
use crate::graph_modules::{assert_same_bits, captured, choices, of_layers, only};
use crate::models::{Kind, Layout, Run};

const ATTENTION: GraphModule = GraphModule::ATTENTION;
const DENSE: GraphModule = GraphModule::FEED_FORWARD;
const EXPERTS: GraphModule = GraphModule::EXPERTS;
const ROUTER: GraphModule = GraphModule::ROUTER;
const ROW_ORDER: GraphModule = GraphModule::ROW_ORDER;

/// Choices in a model of four blocks, of which every other has experts: layers 2 and 4.
fn selections() -> Vec<GraphSelection> {
    vec![
        only(&[ROUTER], &[]),
        only(&[ROUTER, ROW_ORDER], &[]),
        only(&[EXPERTS], &[]),
        only(&[ATTENTION, EXPERTS], &[]),
        only(&[ATTENTION, DENSE, ROUTER, ROW_ORDER], &[]),
        only(&[DENSE], &[]),
        only(&[ROUTER], &[2]),
    ]
}

fn run_of(shape: &GptShape, microbatches: usize, graphs: GraphOptions) -> Run {
    Run { shape: Some(shape.clone()), precision: shape.precision, ..Run::new(Kind::Gpt, microbatches, graphs) }
}

#[test]
fn every_choice_of_modules_of_experts_has_the_bits_of_graphs_off() {
    let plain = tiny_experts(Precision::F32);
    let shapes = [
        ("plain", plain.clone()),
        ("bf16", tiny_experts(Precision::Bf16)),
        ("selective recompute", GptShape { recompute: true, ..plain.clone() }),
        ("norms after parts", GptShape { norm_placement: NormPlacement::Post, ..plain.clone() }),
        ("norms before and after", GptShape { norm_placement: NormPlacement::Sandwich, ..plain.clone() }),
        ("no attention", GptShape { attention: AttentionKind::None, ..plain }),
    ];
    for (name, shape) in shapes {
        let selections: Vec<GraphSelection> = selections()
            .into_iter()
            .filter(|only| shape.attention != AttentionKind::None || !only.modules.contains(&ATTENTION))
            .collect();
        for (microbatches, mempool) in [(1, Mempool::PerMicrobatch), (3, Mempool::PerMicrobatch), (3, Mempool::Single)]
        {
            let settings = choices(mempool, selections.clone());
            let run = |graphs| run_of(&shape, microbatches, graphs);
            assert_same_bits(name, &Layout::new(1, 1, 1, 1), &settings, run);
        }
    }
}

#[test]
fn copies_at_the_borders_of_halves_of_experts_change_no_bit() {
    let settings: Vec<GraphOptions> = choices(Mempool::PerMicrobatch, selections())
        .into_iter()
        .map(|graphs| GraphOptions { share_io_buffers: false, ..graphs })
        .collect();
    let shape = tiny_experts(Precision::F32);
    assert_same_bits("copies", &Layout::new(1, 1, 1, 1), &settings, |graphs| run_of(&shape, 3, graphs));
}

#[test]
fn ranks_and_stages_have_the_same_bits_with_any_choice_of_modules_of_experts() {
    let (tensor, stages) = (Layout::new(2, 1, 1, 1), Layout::new(1, 2, 1, 1));
    for layout in [
        tensor,
        Layout { sequence: false, ..tensor },
        Layout::new(1, 1, 1, 2),
        stages,
        Layout { zero_bubble: true, ..Layout::new(2, 2, 1, 2) },
    ] {
        let shape = tiny_experts(Precision::F32);
        let run = |graphs| Run {
            distributed_optimizer: layout.data > 1,
            rehearses: layout.stages > 1,
            ..run_of(&shape, 4 / layout.data, graphs)
        };
        let settings = choices(Mempool::PerMicrobatch, selections());
        assert_same_bits(&format!("{layout:?}"), &layout, &settings, run);
    }
}

#[test]
fn the_graphs_of_experts_are_those_that_the_choice_names_and_the_rest_is_eager() {
    let rest = &["moe forward (it is not among the chosen modules)", "moe backward (it is not among"][..];
    // Of four blocks two have experts. A backward has a graph for the first microbatch too.
    let cases: [(GraphSelection, usize, &[&str]); 8] = [
        (only(&[EXPERTS], &[]), 6, &["attention forward (it is not among the chosen modules)"]),
        (only(&[ATTENTION, EXPERTS], &[]), 12, &["mlp forward (it is not among the chosen modules)"]),
        (only(&[ROUTER], &[]), 6, rest),
        (only(&[ROUTER, ROW_ORDER], &[]), 6, rest),
        (only(&[ATTENTION, ROUTER], &[]), 18, rest),
        (only(&[ATTENTION, DENSE, ROUTER], &[]), 18, rest),
        (only(&[DENSE], &[]), 6, &["forward (no module of its block is among the chosen ones)"]),
        (only(&[ROUTER], &[4]), 3, rest),
    ];
    for (only, graphs, reasons) in cases {
        let options = GraphOptions { only: only.clone(), ..GraphOptions::default() };
        let (report, _) = captured(&run_of(&tiny_experts(Precision::F32), 4, options));
        let line = report.to_string();
        assert_eq!(of_layers(&report).len(), graphs, "{only:?}: {line}");
        assert!(reasons.iter().all(|reason| line.contains(reason)), "{only:?}: {line}");
    }
}

/// The operations of each graph, by the graph's name.
fn operations(report: Report) -> BTreeMap<String, Vec<String>> {
    let last = |node: &String| node.rsplit('/').next().unwrap().to_string();
    report.graphs.into_iter().map(|graph| (graph.name, graph.nodes.iter().map(last).collect())).collect()
}

#[test]
fn the_first_half_has_the_router_and_the_shared_expert_and_its_products_of_experts_stay_outside() {
    let graphs_of = |modules: &[GraphModule]| {
        let options = GraphOptions { only: only(modules, &[]), ..GraphOptions::default() };
        operations(captured(&run_of(&tiny_experts(Precision::F32), 2, options)).0)
    };
    let [whole, router, with_order] = [&[EXPERTS][..], &[ROUTER], &[ROUTER, ROW_ORDER]].map(graphs_of);
    let count = |nodes: &[String], name: &str| nodes.iter().filter(|node| node.as_str() == name).count();
    let forward = "forward of layer 2, microbatch 0";
    let [whole_forward, first, first_with_order] = [
        &whole[&format!("moe {forward}")],
        &router[&format!("moe_router {forward}")],
        &with_order[&format!("moe_router {forward}")],
    ];
    for (name, whole, half) in
        [("norm", 1, 1), ("route", 1, 1), ("glu", 1, 1), ("grouped_gemm", 2, 0), ("gather_rows", 1, 0)]
    {
        assert_eq!((count(whole_forward, name), count(first, name)), (whole, half), "{name}: {first:?}");
    }
    assert_eq!(count(first, "sort_by_expert"), 0, "{first:?}");
    let without: Vec<&String> = first_with_order.iter().filter(|node| *node != "sort_by_expert").collect();
    assert_eq!(without, first.iter().collect::<Vec<_>>());
    assert_eq!(first_with_order.len(), first.len() + 1);

    let backward = "backward of layer 2, microbatch 0";
    let (whole, half) = (&whole[&format!("moe {backward}")], &router[&format!("moe_router {backward}")]);
    for (name, of_whole, of_half) in
        [("norm_backward", 1, 1), ("route_backward", 1, 1), ("glu_backward", 1, 1), ("grouped_gemm", 4, 0)]
    {
        assert_eq!((count(whole, name), count(half, name)), (of_whole, of_half), "{name}: {half:?}");
    }
}

#[test]
fn choices_of_experts_that_do_not_go_together_are_refused() {
    let device = Run::new(Kind::Gpt, 1, GraphOptions::default()).device();
    let refused = |modules: &[GraphModule], of_block: &[GraphModule]| {
        let shape = StepShape { layers: 1, modules: vec![of_block.to_vec()], ..StepShape::default() };
        let options = GraphOptions { only: only(modules, &[]), ..GraphOptions::default() };
        match StepPolicy::manager(device.stream("compute"), &options, shape) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let (with, dense) = (&[ATTENTION, EXPERTS][..], &[ATTENTION, DENSE][..]);
    for (modules, of_block, words) in [
        (&[EXPERTS, ROUTER][..], with, "`moe` is the whole layer"),
        (&[EXPERTS, ROW_ORDER], with, "`moe` is the whole layer"),
        (&[ROW_ORDER], with, "`moe_preprocess` a part of that half"),
        (&[ROUTER], dense, "the chosen module `moe_router` is not in the model"),
        (&[DENSE], with, "the chosen module `mlp` is not in the model"),
    ] {
        let error = refused(modules, of_block);
        assert!(error.contains(words), "{modules:?}: {error}");
    }
    for modules in [&[EXPERTS][..], &[ROUTER], &[ROUTER, ROW_ORDER]] {
        assert_eq!(refused(modules, with), "");
    }
}

#[test]
fn a_model_of_experts_alone_has_graphs_of_halves_too() {
    let shape = tiny_mixtral(0.1, Precision::F32);
    let settings =
        choices(Mempool::PerMicrobatch, vec![only(&[ROUTER], &[]), only(&[ATTENTION, ROUTER, ROW_ORDER], &[])]);
    assert_same_bits("mixtral", &Layout::new(1, 1, 1, 1), &settings, |graphs| run_of(&shape, 2, graphs));
}
