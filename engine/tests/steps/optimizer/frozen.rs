//! A frozen parameter keeps its bits and costs no gradient, no master weights and no optimizer state. All others get the
//! gradients that they get without it.

use std::collections::BTreeMap;

use device::{DType, Home, bf16};
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::Stage;

use crate::models::{Kind, Run, all_settings, assert_graphs_change_no_bit, tiny_gpt, tiny_llama, tiny_qwen3};

/// Parameters by name, in bits.
type Bits = BTreeMap<String, Vec<u32>>;

/// Whether a parameter is frozen, by its name.
type Frozen = fn(&str) -> bool;

/// The frozen parameters, in words and as a function of a parameter's name.
const CHOICES: [(&str, Frozen); 6] = [
    ("the tables and the first block", |name| ["wte", "wpe", "h.0."].iter().any(|begin| name.starts_with(begin))),
    ("all but norms", |name| !is_norm(name)),
    ("norms", is_norm),
    ("biases and gains of heads", |name| name.ends_with(".bias") || name.contains("q_norm")),
    ("positions, and one matrix of each part", |name| {
        ["wpe.weight", "lm_head.weight", "c_attn.weight", "mlp.c_proj.weight"].iter().any(|end| name.ends_with(end))
    }),
    ("all but the head's norm", |name| !name.starts_with("ln_f")),
];

fn is_norm(name: &str) -> bool {
    name.contains("ln_") || name.contains("_norm")
}

fn run(shape: GptShape, frozen: fn(&str) -> bool, graphs: GraphOptions) -> Run {
    let kind = if shape.tied { Kind::Gpt } else { Kind::Llama };
    let clip = 0.0;
    Run { shape: Some(shape), steps: 3, clip, frozen, ..Run::new(kind, 2, graphs) }
}

fn bits(stage: &Stage, tensor: &device::Tensor) -> Vec<u32> {
    match tensor.dtype {
        DType::F32 => stage.device().download::<f32>(tensor).unwrap().into_iter().map(f32::to_bits).collect(),
        _ => stage.device().download::<bf16>(tensor).unwrap().into_iter().map(|x| x.to_bits().into()).collect(),
    }
}

fn weights(stage: &Stage) -> Bits {
    stage.params().iter().map(|(spec, param)| (spec.name.clone(), bits(stage, &param.weight))).collect()
}

fn gradients(stage: &Stage) -> Bits {
    let all = stage.params().iter();
    all.filter_map(|(spec, param)| Some((spec.name.clone(), bits(stage, param.grad.as_ref()?)))).collect()
}

#[test]
fn frozen_parameters_keep_their_bits_and_the_others_get_the_same_gradients() {
    for shape in [tiny_gpt(0.1, Precision::F32), tiny_llama(0.0, Precision::Bf16), tiny_qwen3(0.0, Precision::F32)] {
        for (what, frozen) in CHOICES {
            let train = |frozen, steps| {
                let run = Run { steps, ..run(shape.clone(), frozen, GraphOptions::default()) };
                run.train_on(&run.device()).1
            };
            let (whole, stage) = (gradients(&train(|_| false, 1)), gradients(&train(frozen, 1)));
            let trained: Vec<&String> = whole.keys().filter(|name| !frozen(name)).collect();
            assert!(!trained.is_empty(), "{what}");
            assert_eq!(
                trained.len() < whole.len(),
                shape.bias || shape.qk_norm.is_some() || !what.contains("biases"),
                "{what}"
            );
            assert_eq!(stage.keys().collect::<Vec<_>>(), trained, "{what}");
            for (name, bits) in &stage {
                assert!(*bits == whole[name], "{what}: the gradient of {name}");
            }
            let (before, after) = (weights(&train(frozen, 0)), weights(&train(frozen, 3)));
            for (name, bits) in &before {
                assert_eq!(*bits == after[name], frozen(name), "{what}: {name}");
            }
        }
    }
}

#[test]
fn a_frozen_parameter_costs_its_weights_alone() {
    let (_, frozen) = CHOICES[0];
    let stage = |frozen| {
        let run = run(tiny_llama(0.0, Precision::Bf16), frozen, GraphOptions::default());
        run.stage(&run.device())
    };
    let (whole, part) = (stage(|_| false), stage(frozen));
    let elements = |stage: &Stage| -> usize {
        let trained = stage.params().iter().filter(|(spec, _)| !spec.frozen);
        trained.map(|(spec, _)| spec.shape.elements().next_multiple_of(64)).sum()
    };
    assert!(elements(&part) < elements(&whole));
    for stage in [&whole, &part] {
        assert_eq!(stage.params().grads.elements(), elements(stage));
        assert_eq!(
            stage.params().master_bytes_in(Home::Device) + stage.params().own_master_bytes(),
            4 * elements(stage)
        );
        assert_eq!(stage.optimizer().state_bytes_in(Home::Device), 8 * elements(stage));
    }
    assert_eq!(whole.params().weight_bytes(), part.params().weight_bytes());
    // Products that nothing reads are not computed: one for each frozen matrix, in a forward or a backward.
    let products = |frozen| {
        let run = run(tiny_llama(0.0, Precision::F32), frozen, GraphOptions::default());
        let (_, mut stage) = run.train_on(&run.device());
        let graphs = stage.graphs().report().graphs;
        let last = |pass: &str| graphs.iter().rfind(|graph| graph.name.starts_with(&format!("{pass} of layer 1,")));
        let nodes = ["forward", "backward"].into_iter().filter_map(last).flat_map(|graph| &graph.nodes);
        nodes.filter(|node| node.contains("gemm")).count()
    };
    // Block 0 has four matrices.
    assert_eq!(products(|_| false) - products(frozen), 4);
}

#[test]
fn every_way_to_run_a_step_gives_the_same_bits_with_frozen_parameters() {
    for (what, frozen) in [CHOICES[0], CHOICES[4]] {
        let train = |graphs| run(tiny_gpt(0.1, Precision::F32), frozen, graphs).train();
        assert_graphs_change_no_bit(what, &all_settings()[1..], train);
    }
}

#[test]
fn a_model_that_is_frozen_as_a_whole_evaluates_as_one_that_trains_and_has_weights_alone() {
    for precision in [Precision::F32, Precision::Bf16] {
        let run = |frozen| Run { ..run(tiny_gpt(0.1, precision), frozen, GraphOptions::default()) };
        let losses = |run: Run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            if (run.frozen)("wte.weight") {
                stage.record_evaluation(run.microbatches).unwrap();
                let (params, optimizer) = (stage.params(), stage.optimizer());
                assert_eq!(
                    (params.grads.elements(), params.master_bytes_in(Home::Device), params.own_master_bytes()),
                    (0, 0, 0)
                );
                assert_eq!((params.frozen_bytes(), optimizer.state_bytes_in(Home::Device)), (params.weight_bytes(), 0));
            }
            (0..4).map(|step| run.evaluate(&mut stage, run.settings(step)).loss.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(losses(run(|_| true)), losses(run(|_| false)), "{precision:?}");
    }
}
