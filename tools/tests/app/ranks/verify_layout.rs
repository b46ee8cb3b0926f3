//! `trainer verify layout` as users run it: on a sound layout it says what it compared, and wrong flags are refused.

use std::process::{Command, Output};

use crate::harness::{expect, printed};

fn verify(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer"))
        .args(["verify", "layout"])
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

const LAYOUT: &str = "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
                      --use-distributed-optimizer";

#[test]
fn a_layout_of_three_axes_has_the_numbers_of_one_rank() {
    let output = verify(&format!("--ranks 8 -- --preset llama-8b --bf16 --global-batch-size 64 {LAYOUT}"));
    let parts = [
        "same numbers as one rank: tensor 2 x pipeline 2 x data 2, 8 ranks, 3 steps of 4 blocks of width 64",
        "8 heads with 4 of keys",
        "differences: loss ",
        "gradient norm ",
        "and of 27 parameters: gradient ",
        "optimizer state `exp_avg_sq` ",
        "update ",
        "checkpoint: 81 tensors with the same bits after one rank has loaded them",
        "bf16: differences: loss ",
        "bf16: checkpoint: 81 tensors with the same bits",
    ];
    expect(&output, 0, &parts);
}

#[test]
fn regressions_divide_their_batch() {
    expect(&verify("--ranks 2 -- --preset mlp --global-batch-size 2560"), 0, &["data 2, 2 ranks, 3 steps of an MLP"]);
}

#[test]
fn a_large_layout_is_told_as_small_ones_before_any_step() {
    let flags =
        "--preset llama-70b --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --global-batch-size 64";
    let text = printed(&verify(&format!("--ranks 64 --dry-run -- {flags}")));
    let told: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("would compare with one rank: ")).collect();
    let layouts: Vec<&str> = told.iter().filter_map(|line| line.split(',').next()).collect();
    assert_eq!(
        layouts,
        [
            "tensor 2 x pipeline 2 x data 2",
            "tensor 4 x pipeline 1 x data 2",
            "tensor 4 x pipeline 4 x data 1",
            "tensor 1 x pipeline 4 x data 2"
        ],
        "{text}"
    );
}
