//! The z-loss: the same with graphs, and no part of a step without it. `parity.rs` compares it with PyTorch.

use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::precision::Precision;

use crate::models::{Kind, Run, all_settings, tiny_gpt};

const STEPS: usize = 6;

fn run(data: usize, graphs: GraphOptions) -> Run {
    let shape = GptShape { z_loss_multiplier: 0.05, loss_pieces: 2, ..tiny_gpt(0.1, Precision::F32) };
    Run { shape: Some(shape), steps: STEPS, check: true, ..Run::new(Kind::Gpt, 4 / data, graphs) }
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
