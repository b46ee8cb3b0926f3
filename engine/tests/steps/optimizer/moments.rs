//! Moments in bf16: half the memory, the same bits with graphs and in parts, and a training beside that in f32.

use device::{DType, Home};
use engine::graph_options::GraphOptions;
use engine::optimizer::MomentTypes;

use crate::models::{Kind, Layout, Run, assert_graphs_change_no_bit, some_settings};

const BF16: MomentTypes = MomentTypes { exp_avg: DType::Bf16, exp_avg_sq: DType::Bf16 };

fn run(moments: MomentTypes, graphs: GraphOptions) -> Run {
    Run { moments, steps: 8, dropout: 0.1, ..Run::new(Kind::Gpt, 2, graphs) }
}

#[test]
fn moments_in_bf16_take_half_the_memory_and_train_beside_those_in_f32() {
    let train = |moments| {
        let run = run(moments, GraphOptions::default());
        let device = run.device();
        let (results, stage) = run.train_on(&device);
        (results, stage.optimizer().state_bytes_in(Home::Device))
    };
    let ((exact, all), (rounded, half)) = (train(MomentTypes::default()), train(BF16));
    assert!(half * 2 <= all + 4096, "{half} bytes in bf16, {all} in f32");
    assert_ne!(exact, rounded);
    for (a, b) in exact.iter().zip(&rounded) {
        assert!((a.loss / b.loss - 1.0).abs() < 1e-2, "{} in f32, {} in bf16", a.loss, b.loss);
    }
}

#[test]
fn graphs_change_no_bit_of_a_training_with_moments_in_bf16() {
    assert_graphs_change_no_bit("moments", &some_settings(7), |graphs| run(BF16, graphs).train());
}

#[test]
fn ranks_that_divide_moments_in_bf16_have_the_bits_of_ranks_that_do_not() {
    let losses = |divided| {
        let run = || Run { clip: 0.0, distributed_optimizer: divided, ..run(BF16, GraphOptions::default()) };
        Layout::new(1, 1, 1, 2).on_ranks(run, |run| run.train().0.iter().map(|r| r.loss.to_bits()).collect::<Vec<_>>())
    };
    assert_eq!(losses(true), losses(false));
}
