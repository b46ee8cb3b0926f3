//! Muon needs whole matrices: every layout trains as one rank does, and graphs change no bit. `parity.rs` compares it with
//! PyTorch.

use std::sync::Arc;

use device::DType;
use device::ops::Rule;
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::optimizer::{Muon, ParamGroup};
use engine::precision::Precision;
use engine::step::StepResult;

use crate::experts::tiny_mixtral;
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

/// The numbers of all steps. All ranks must agree on them.
fn train(layout: Layout, shape: &GptShape, divided: bool) -> Vec<StepResult> {
    let graphs = GraphOptions { scope: Scope::FullIteration, poison: true, ..GraphOptions::default() };
    let ranks = layout.on_ranks(|| run(shape, layout.data, divided, graphs.clone()), |run| run.train().0);
    assert!(ranks.iter().all(|results| *results == ranks[0]), "{layout:?}: ranks disagree on the numbers");
    ranks[0].clone()
}

#[test]
fn every_layout_trains_by_muon_as_one_rank_does() {
    let gpt = tiny_gpt(0.0, Precision::F32);
    // More tensor-parallel ranks than key heads: some ranks store copies.
    let llama = GptShape { heads: 8, kv_heads: 2, ..tiny_llama(0.0, Precision::F32) };
    let mixture = tiny_mixtral(0.0, Precision::F32);
    let alone = |shape| train(Layout::new(1, 1, 1, 1), shape, false);
    let (gpt_alone, llama_alone, mixture_alone) = (alone(&gpt), alone(&llama), alone(&mixture));
    assert!(gpt_alone[STEPS - 1].loss < gpt_alone[0].loss);
    for (layout, shape, divided) in [
        (Layout::new(1, 1, 1, 4), &gpt, false),
        (Layout::new(1, 1, 1, 4), &gpt, true),
        (Layout::new(2, 1, 1, 2), &gpt, true),
        (Layout::new(1, 2, 1, 2), &gpt, true),
        (Layout::new(4, 1, 1, 1), &llama, false),
        (Layout::new(2, 2, 1, 2), &llama, true),
        (Layout::new(2, 1, 1, 1), &mixture, false),
        (Layout::new(2, 1, 1, 2), &mixture, true),
    ] {
        let all = [(&gpt, &gpt_alone), (&llama, &llama_alone), (&mixture, &mixture_alone)];
        let expected = all.iter().find(|(of, _)| std::ptr::eq(*of, shape)).unwrap().1;
        for (step, (ours, one)) in train(layout, shape, divided).iter().zip(expected).enumerate() {
            let difference = (ours.loss / one.loss - 1.0).abs();
            assert!(
                difference < 2e-5,
                "{layout:?}, divided {divided}: loss of step {step} differs by {difference:.1e}"
            );
        }
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
