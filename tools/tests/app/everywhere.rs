//! From an imported model over a text to a sample, on one, two and four ranks, with graphs off and in every scope.

use std::process::Command;

use crate::data_files::{LICENSES, small_tokenizer};
use crate::harness::{Folder, assert_same, checkpoint, expect, losses, resume_at, run};

const GRAPHS: [&str; 4] = [
    "",
    "--enable-cuda-graph",
    "--enable-cuda-graph --cuda-graph-scope per_chunk",
    "--enable-cuda-graph --cuda-graph-scope full_iteration",
];

/// The output of `trainer FLAGS`.
fn trainer(flags: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(flags.split(' ')).output().unwrap();
    expect(&output, 0, &[]);
    String::from_utf8(output.stdout).unwrap()
}

/// Trains an imported model with these choices on a licence through a tokenizer, on so many ranks with each kind of graphs, as
/// a whole and continued from its middle: all the same bits, and the same text of each. Returns the losses. It is imported
/// from a folder of the family that `transformers` calls `kind`.
fn train_everywhere(kind: &str, choices: &str, ranks: usize, layout: &str) -> Vec<f64> {
    let folder = Folder::new(&format!("everywhere-{kind}-{ranks}"));
    let path = |name: &str| folder.path(name).to_str().unwrap().to_string();
    let (theirs, json, gpl) = (path("theirs"), path("tokenizer.json"), format!("{LICENSES}/GPL-3"));
    let text = std::fs::read_to_string(&gpl).unwrap();
    small_tokenizer(json.as_ref(), &text);
    let model = format!("{choices} --vocab 400");
    expect(&run(1, &folder.0, &format!("--steps 1 --eval-interval 0 {model}")), 0, &[]);
    trainer(&format!("convert --to hf {} {theirs}", checkpoint(&folder.0, 1).display()));
    let config = std::fs::read_to_string(format!("{theirs}/config.json")).unwrap();
    assert!(config.contains(&format!("\"model_type\": \"{kind}\"")), "{config}");
    std::fs::copy(&json, format!("{theirs}/tokenizer.json")).unwrap();

    let data = format!("--init-from {theirs} --data-path {gpl} --tokenizer {json} --seq-length 16");
    let flags =
        format!("{data} {layout} --lr 3e-3 --steps 6 --save-interval 3 --hidden-dropout 0.1 --attention-dropout 0.1");
    let sample = |of: &Folder| {
        let step = checkpoint(&of.0, 6);
        trainer(&format!("sample --checkpoint {} --prompt freedom --tokens 20 --threads 1", step.display()))
    };
    let eager = Folder::new(&format!("everywhere-{kind}-{ranks}-eager"));
    expect(&run(ranks, &eager.0, &flags), 0, &["done: loss"]);
    let written = sample(&eager);
    assert!(written.starts_with("freedom") && written.len() > 20, "{written:?}");
    for graphs in GRAPHS {
        let what = format!("{kind} on {ranks} ranks, `{graphs}`");
        let resumed = resume_at(&eager, 3, ranks, &format!("{flags} {graphs}"));
        assert_same(&resumed, &eager, &format!("{what}, resumed"));
        if !graphs.is_empty() {
            let whole = Folder::new(&format!("everywhere-{kind}-{ranks}-whole"));
            expect(&run(ranks, &whole.0, &format!("{flags} {graphs}")), 0, &["graphs: ", "done: loss"]);
            assert_same(&whole, &eager, &what);
            assert_eq!(sample(&whole), written, "{what}");
        }
    }
    losses(&eager)
}

#[test]
fn an_imported_llama_trains_on_text_to_the_same_bits_in_every_scope_on_one_two_and_four_ranks() {
    let alone = train_everywhere("llama", "--preset tiny-llama", 1, "");
    assert!(alone[5] < alone[0] - 0.05, "nothing is learnt: {alone:?}");
    for ranks in [2, 4] {
        for (step, (ours, theirs)) in
            train_everywhere("llama", "--preset tiny-llama", ranks, "").iter().zip(&alone).enumerate()
        {
            // The same samples and masks; ranks add the same numbers in another order.
            let allowed = if step == 0 { 1e-6 } else { 1e-4 };
            assert!((ours / theirs - 1.0).abs() <= allowed, "{ranks} ranks, step {step}: {ours} and {theirs}");
        }
    }
}

#[test]
fn an_imported_gpt2_trains_on_text_to_the_same_bits_in_every_scope_on_two_ranks() {
    train_everywhere("gpt2", "--preset tiny", 2, "");
}

#[test]
fn imported_qwens_train_on_text_to_the_same_bits_in_every_scope_on_ranks_that_share_layers() {
    for (kind, choices) in [("qwen2", "--qkv-bias"), ("qwen3", "--qk-norm --head-dim 12")] {
        let choices = format!("--preset tiny-llama {choices}");
        let alone = train_everywhere(kind, &choices, 1, "");
        let shared = train_everywhere(kind, &choices, 2, "--tensor-model-parallel-size 2");
        for (step, (ours, theirs)) in shared.iter().zip(&alone).enumerate() {
            assert!((ours / theirs - 1.0).abs() <= 1e-4, "{kind}, step {step}: {ours} and {theirs}");
        }
    }
}
