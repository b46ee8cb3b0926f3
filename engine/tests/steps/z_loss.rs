//! The z-loss: the same in every layout and with graphs, and no part of a step without it. `parity.rs` compares it with PyTorch.

use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::StepResult;

use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt};

const STEPS: usize = 6;

fn run(data: usize, graphs: GraphOptions) -> Run {
    let shape = GptShape { z_loss_multiplier: 0.05, loss_pieces: 2, ..tiny_gpt(0.1, Precision::F32) };
    Run { shape: Some(shape), steps: STEPS, check: true, ..Run::new(Kind::Gpt, 4 / data, graphs) }
}

#[test]
fn every_layout_has_the_z_loss_of_one_rank() {
    let graphs = || GraphOptions { scope: Scope::FullIteration, poison: true, ..GraphOptions::default() };
    let train = |layout: Layout| {
        let ranks = layout.on_ranks(|| run(layout.data, graphs()), |run| run.train().0);
        assert!(ranks.iter().all(|results| *results == ranks[0]), "{layout:?}: ranks disagree on the numbers");
        ranks[0].clone()
    };
    let alone = train(Layout::new(1, 1, 1, 1));
    let of = |result: &StepResult| [result.loss, result.added["z_loss"], f64::from(result.grad_norm)];
    for layout in [Layout::new(1, 1, 1, 2), Layout::new(2, 1, 1, 1), Layout::new(1, 2, 1, 1), Layout::new(2, 2, 1, 2)] {
        for (ours, one) in train(layout).iter().zip(&alone) {
            let close = of(ours).iter().zip(of(one)).all(|(a, b)| (a / b - 1.0).abs() < 1e-5);
            assert!(close, "{layout:?}: {ours:?}, alone {one:?}");
        }
    }
}

#[test]
fn graphs_change_no_bit_of_a_training_with_a_z_loss() {
    let (plain, weights) = run(1, GraphOptions { enable: false, ..GraphOptions::default() }).train();
    assert!(plain.iter().all(|step| step.added["z_loss"] > 0.0), "{plain:?}");
    for (name, options) in all_settings().into_iter().skip(1).step_by(5) {
        let (results, others) = run(1, options).train();
        assert_eq!(plain, results, "{name}");
        assert!(weights.iter().zip(&others).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: final weights");
    }
}
