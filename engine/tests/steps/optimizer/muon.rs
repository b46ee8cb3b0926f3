//! Muon needs whole matrices: neither graphs nor a state that ranks divide change a bit. `parity` compares it with
//! PyTorch.

use std::sync::Arc;

use device::DType;
use device::ops::Rule;
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::optimizer::{Muon, ParamGroup};
use engine::params::Sharding;
use engine::precision::Precision;

use crate::models::{Kind, Layout, Run, assert_graphs_change_no_bit, some_settings, tiny_llama};

const STEPS: usize = 10;

/// Muon for matrices of blocks, AdamW for the rest.
pub fn muon_groups() -> Vec<ParamGroup> {
    let muon = Muon { momentum: 0.95, steps: 5, products: DType::F32 };
    let matrices = ParamGroup::new(Muon::takes, Arc::new(muon), 0.1);
    let others = ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1);
    [vec![matrices], others].concat()
}

/// Four microbatches a step over all ranks.
fn run(shape: &GptShape, data: usize, sharding: Sharding, graphs: GraphOptions) -> Run {
    Run {
        shape: Some(shape.clone()),
        groups: Some(muon_groups()),
        sharding,
        steps: STEPS,
        check: true,
        ..Run::new(Kind::Gpt, 4 / data, graphs)
    }
}

#[test]
fn ranks_that_divide_the_state_of_muon_have_the_bits_of_ranks_that_do_not() {
    let shape = tiny_llama(0.0, Precision::F32);
    let losses = |data, sharding| {
        let run = || Run { clip: 0.0, ..run(&shape, data, sharding, GraphOptions::default()) };
        Layout::new(1, 1, 1, data).on_ranks(run, |run| {
            let (results, stage) = run.train_on(&run.device());
            let of_muon = stage.params().iter().filter(|(spec, _)| Muon::takes(spec));
            let updated: usize = of_muon.map(|(_, param)| param.owned.elements).sum();
            (results.iter().map(|result| result.loss.to_bits()).collect::<Vec<_>>(), updated)
        })
    };
    // With one microbatch divided gradients are summed in the same order.
    let all = [Sharding::State, Sharding::Gradients, Sharding::Weights];
    for (data, choices) in [(2, &all[..1]), (4, &all[..])] {
        let whole = losses(data, Sharding::Nothing);
        for &sharding in choices {
            let divided = losses(data, sharding);
            let elements: Vec<usize> = divided.iter().map(|(_, updated)| *updated).collect();
            assert!(divided.iter().zip(&whole).all(|(a, b)| a.0 == b.0), "{data} ranks, {sharding:?}");
            assert_eq!(elements.iter().sum::<usize>(), whole[0].1, "each element has one owner");
            assert_eq!(elements.iter().max(), elements.first(), "the plan of the first rank is enough for all");
        }
    }
}

#[test]
fn graphs_change_no_bit_of_a_training_by_muon() {
    let shape = tiny_llama(0.1, Precision::Bf16);
    let train = |graphs| Run { steps: 5, ..run(&shape, 1, Sharding::Nothing, graphs) }.train();
    assert_graphs_change_no_bit("Muon", &some_settings(5), train);
}
