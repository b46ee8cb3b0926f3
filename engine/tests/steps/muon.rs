//! Muon needs whole matrices: neither graphs nor a state that ranks divide change a bit. `parity.rs` compares it with
//! PyTorch.

use std::sync::Arc;

use device::DType;
use device::ops::Rule;
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::optimizer::{Muon, ParamGroup};
use engine::precision::Precision;

use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt, tiny_llama};

const STEPS: usize = 10;

/// Muon for matrices of blocks, AdamW for the rest.
pub fn muon_groups() -> Vec<ParamGroup> {
    let muon = Muon { momentum: 0.95, steps: 5, products: DType::F32 };
    let matrices = ParamGroup::new(Muon::takes, Arc::new(muon), 0.1);
    let others = ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1);
    [vec![matrices], others].concat()
}

/// Four microbatches a step over all ranks.
fn run(shape: &GptShape, data: usize, divided: bool, graphs: GraphOptions) -> Run {
    Run {
        shape: Some(shape.clone()),
        groups: Some(muon_groups()),
        distributed_optimizer: divided,
        steps: STEPS,
        check: true,
        ..Run::new(Kind::Gpt, 4 / data, graphs)
    }
}

#[test]
fn ranks_that_divide_the_state_of_muon_have_the_bits_of_ranks_that_do_not() {
    let shape = tiny_gpt(0.0, Precision::F32);
    let losses = |divided| {
        let run = || Run { clip: 0.0, ..run(&shape, 2, divided, GraphOptions::default()) };
        Layout::new(1, 1, 1, 2).on_ranks(run, |run| run.train().0.iter().map(|r| r.loss.to_bits()).collect::<Vec<_>>())
    };
    assert_eq!(losses(true), losses(false));
}

#[test]
fn graphs_change_no_bit_of_a_training_by_muon() {
    let shape = tiny_llama(0.1, Precision::Bf16);
    let train = |graphs| Run { steps: 5, ..run(&shape, 1, false, graphs) }.train();
    let (plain, weights) = train(GraphOptions { enable: false, ..GraphOptions::default() });
    for (name, options) in all_settings().into_iter().skip(1).step_by(5) {
        let (results, others) = train(options);
        assert_eq!(plain, results, "{name}");
        assert!(weights.iter().zip(&others).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: final weights");
    }
}
