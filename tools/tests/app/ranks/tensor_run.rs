//! Runs with ranks that share layers, as users start them: checkpoints across layouts, and refusals.

use crate::harness::{Folder, assert_like, assert_same, expect, metrics, resume_at, run, saved};

const SHARED: &str = "--tensor-model-parallel-size 2 --sequence-parallel --enable-cuda-graph";
/// Four ranks as two by two.
const BOTH: &str = "--tensor-model-parallel-size 2";

/// Eight steps with a checkpoint after every fourth.
fn flags(layout: &str) -> String {
    format!("--steps 8 --save-interval 4 {layout}")
}

#[test]
fn a_checkpoint_goes_on_under_any_layout_as_if_it_had_never_stopped() {
    let layouts = [(1, ""), (2, SHARED), (4, BOTH)];
    let unbroken = layouts.map(|(ranks, layout)| {
        let folder = Folder::new(&format!("layout-{ranks}"));
        expect(&run(ranks, &folder.0, &flags(layout)), 0, &["done: loss"]);
        assert_eq!(saved(&folder.0), [4, 8]);
        folder
    });
    for (at, from) in unbroken.iter().enumerate() {
        assert_like(8, &metrics(&unbroken[0].0), &metrics(&from.0), layouts[at].1);
        // From one layout to all, and from each to the first two.
        let others = if at == 0 { &layouts[..] } else { &layouts[..2] };
        for &(ranks, layout) in others {
            let resumed = resume_at(from, 4, ranks, &flags(layout));
            let what = format!("`{}` to `{layout}`", layouts[at].1);
            assert_like(8, &metrics(&from.0), &metrics(&resumed.0), &what);
            if layout == layouts[at].1 {
                assert_same(&resumed, from, "the same layout");
            }
        }
    }
}

#[test]
fn a_checkpoint_of_copied_key_heads_has_each_once_and_goes_on_with_another_number_of_ranks() {
    let model = "--kv-heads 1 --qkv-bias --bias=false --use-distributed-optimizer";
    let layouts = [(1, ""), (2, SHARED), (4, BOTH)];
    let unbroken = layouts.map(|(ranks, layout)| {
        let folder = Folder::new(&format!("copies-{ranks}"));
        expect(&run(ranks, &folder.0, &flags(&format!("{model} {layout}"))), 0, &["done: loss"]);
        folder
    });
    for (at, from) in unbroken.iter().enumerate() {
        assert_like(8, &metrics(&unbroken[0].0), &metrics(&from.0), layouts[at].1);
        for &(ranks, layout) in &layouts {
            let flags = flags(&format!("{model} {layout}"));
            let resumed = resume_at(from, 4, ranks, &flags);
            assert_like(8, &metrics(&from.0), &metrics(&resumed.0), &format!("`{}` to `{layout}`", layouts[at].1));
        }
    }
}

#[test]
fn a_checkpoint_of_a_shared_model_is_listed_complete_and_a_missing_part_is_found() {
    let folder = Folder::new("parts");
    expect(&run(2, &folder.0, &format!("--steps 2 {SHARED}")), 0, &["done: loss"]);
    let part = folder.path("saved/step-00000002/model-00002-of-00002.safetensors");
    assert!(part.exists());
    std::fs::remove_file(part).unwrap();
    let output = run(2, &folder.0, &format!("--steps 3 {SHARED}"));
    expect(&output, 2, &["holds no complete checkpoint", "model-00002-of-00002.safetensors", "is missing"]);
}

#[test]
fn layouts_that_do_not_fit_are_refused_with_what_would() {
    let folder = Folder::new("refused");
    for (ranks, flags, words) in [
        (1, "--tensor-model-parallel-size 2", ["parallel.tensor = 2 on 1 rank", "set parallel.tensor = 1"]),
        (1, "--tensor-model-parallel-size 0", ["parallel.tensor = 0", "at least 1"]),
        (1, "--pipeline-model-parallel-size 2", ["parallel.pipeline = 2", "set parallel.pipeline = 1"]),
        (3, "--tensor-model-parallel-size 3", ["model.heads = 2 with parallel.tensor = 3", "set model.heads = 3"]),
        (
            3,
            "--tensor-model-parallel-size 3 --hidden 48 --heads 6 --kv-heads 2",
            ["model.kv_heads = 2 with parallel.tensor = 3", "set model.kv_heads = 3"],
        ),
        (2, "--tensor-model-parallel-size 2 --preset mlp", ["model.kind = \"mlp\"", "set parallel.tensor = 1"]),
        (
            2,
            "--tensor-model-parallel-size 2 --sequence-parallel --seq-length 15 --micro-batch-size 1",
            ["micro_batch_size x model.seq_length = 15", "set model.seq_length = 16"],
        ),
    ] {
        expect(&run(ranks, &folder.0, &format!("--steps 1 {flags}")), 2, &words);
    }
}
