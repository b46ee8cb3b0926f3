//! The z-loss: the same with graphs, and no part of a step without it. `parity` compares it with PyTorch.

use engine::model::GptShape;
use engine::precision::Precision;

use crate::models::{Kind, Run, assert_graphs_change_no_bit, some_settings, tiny_gpt};

#[test]
fn graphs_change_no_bit_of_a_training_with_a_z_loss() {
    let shape = GptShape { z_loss_multiplier: 0.05, loss_pieces: 2, ..tiny_gpt(0.1, Precision::F32) };
    let train = |graphs| Run { shape: Some(shape.clone()), ..Run::new(Kind::Gpt, 4, graphs) }.train();
    let (plain, _) = assert_graphs_change_no_bit("z-loss", &some_settings(5), train);
    assert!(plain.iter().all(|step| step.added["z_loss"] > 0.0), "{plain:?}");
}
