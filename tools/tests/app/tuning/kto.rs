//! Preference tuning with labels: a model learns to give answers that are desirable, and not to give others.

use std::path::Path;
use std::process::Output;

use super::dpo::{LAYOUTS, assert_close, numbers_of, numbers_of_trl, train_on, write};
use crate::harness::{Folder, expect, mpirun, printed};

const NAMES: [&str; 8] = [
    "loss",
    "grad_norm",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
    "kl",
];

/// Three steps on all answers.
fn train(ranks: usize, folder: &Path, more: &str) -> Output {
    let data = "--kto --data-path labelled.jsonl --seq-length 40 --global-batch-size 5 --dpo-beta 0.5 \
                --kto-undesirable-weight 1.5";
    train_on(data, ranks, folder, more)
}

#[test]
fn labelled_answers_have_the_losses_rewards_estimates_and_gradients_of_trl() {
    for more in [
        "",
        "--micro-batch-size 5",
        // Several answers in a sample, with as many mismatched ones.
        "--sft-packing 4 --seq-length 96 --global-batch-size 2 --enable-cuda-graph --cuda-graph-scope full_iteration",
    ] {
        let folder = Folder::new("kto-trl");
        write(&folder.0);
        let output = train(1, &folder.0, more);
        expect(&output, 0, &["read as prompt and completion, texts", "5 answers, 0 cut to", "  kl "]);
        assert_close(more, &numbers_of(&NAMES, &folder.0), &numbers_of_trl(&NAMES, "kto"), 2e-4);
    }
}

#[test]
fn layouts_have_the_numbers_of_one_rank_and_a_run_goes_on() {
    let folder = Folder::new("kto-layouts");
    write(&folder.0);
    let more = "--save saved --split 0.8 --eval-interval 1 --eval-iters 1 --global-batch-size 4 --steps 4";
    let output = train(1, &folder.0, &more.replace("--steps 4", "--steps 2"));
    expect(&output, 0, &["computes the log-probabilities of 5 answers", "they are kept in saved/references.json"]);
    let output = train(1, &folder.0, more);
    expect(&output, 0, &["done: loss"]);
    assert!(!printed(&output).contains("computes the log-prob"), "{}", printed(&output));
    let alone = numbers_of(&NAMES, &folder.0);
    for layout in LAYOUTS {
        let other = Folder::new("kto-layout");
        write(&other.0);
        expect(&train(2, &other.0, &format!("{more} {layout}")), 0, &["done: loss"]);
        assert_close(layout, &numbers_of(&NAMES, &other.0), &alone, 1e-4);
    }
}

#[test]
fn labels_are_shown_and_wrong_data_and_settings_are_refused() {
    let folder = Folder::new("kto-wrong");
    write(&folder.0);
    let inspect = |path: &str| mpirun(1, &folder.0, &["data", "inspect", "--kto", path]);
    let says = ["5 answers", "answer 1, desirable: The sky is» blue.", "answer 4, undesirable"];
    let output = mpirun(1, &folder.0, &["data", "inspect", "--kto", "--samples", "4", "labelled.jsonl"]);
    expect(&output, 0, &says);
    for (record, says) in [
        (r#"{"prompt": "a", "completion": "b"}"#, &["has the fields prompt, completion", "`label`, true or false"][..]),
        (r#"{"prompt": "a", "completion": "b", "label": 1}"#, &["has a `label` of 1: it is true or false"]),
        (r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#, &["give --dpo in place of --kto"]),
    ] {
        std::fs::write(folder.path("wrong.jsonl"), format!("{record}\n")).unwrap();
        expect(&inspect("wrong.jsonl"), 2, says);
    }
    for (more, says) in [
        ("--kto-undesirable-weight -1", &["dpo.undesirable_weight = -1", "0 or more"][..]),
        ("--dpo-references step --lora-rank 2", &["dpo.references = \"step\" with data.kto"]),
        ("--z-loss-multiplier 0.1", &["train.z_loss_multiplier = 0.1 with data.kto"]),
        ("--seq-length-buckets 20,40", &["data.seq_length_buckets with data.kto"]),
        ("--sft", &["data.sft with data.kto"]),
    ] {
        expect(&train(1, &folder.0, more), 2, says);
    }
}
