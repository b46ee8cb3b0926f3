//! Runs of the program.

use std::path::Path;
use std::process::Command;

/// A command of the program, in a folder: its output, if it ends with that exit code.
fn run(folder: &Path, code: i32, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_extending"));
    let output = command.args(line.split_whitespace()).current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}\n{text}");
    text
}

/// All that the program adds.
const ALL: &str = "--preset tiny-primer --optimizer novograd --novograd-beta1 0.8 --lr 1e-1 --lr-warmup-steps 1 --own-loss smoothed \
                   --own-data counting --own-metrics csv --activity 0.01 --log-interval 10 --device host";

/// The table of losses.
fn losses(folder: &Path) -> Vec<f64> {
    let table = std::fs::read_to_string(folder.join("runs/last/losses.csv")).unwrap();
    table.lines().map(|line| line.split_once(',').unwrap().1.parse().unwrap()).collect()
}

/// The losses of a run of 12 steps.
fn train(flags: &str) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let text = run(folder.path(), 0, &format!("{flags} --steps 12"));
    assert!(text.contains("activity"), "the term of the part is told: {text}");
    assert!(text.contains("part squared-relu"), "the part is told: {text}");
    assert!(!text.contains("has no effect"), "{text}");
    losses(folder.path())
}

#[test]
fn it_trains_to_the_same_bits_with_graphs_and_without_and_after_a_resume() {
    let plain = train(ALL);
    assert!(plain.len() == 12 && plain[11] < plain[0] - 1.0, "{plain:?}");
    for flags in ["--enable-cuda-graph", "--enable-cuda-graph --cuda-graph-scope full_iteration"] {
        assert_eq!(train(&format!("{ALL} {flags}")), plain, "{flags}");
    }
    let folder = tempfile::tempdir().unwrap();
    for (steps, told) in [(8, "done: loss"), (12, "at step 8")] {
        let flags = format!("--steps {steps} --lr-decay-style constant --checkpoint-dir saved");
        let text = run(folder.path(), 0, &format!("{ALL} {flags}"));
        assert!(text.contains(told), "{text}");
    }
    assert_eq!(losses(folder.path()), train(&format!("{ALL} --lr-decay-style constant")));
    let written = run(folder.path(), 0, "sample --checkpoint saved --prompt a --tokens 4");
    assert!(!written.is_empty());
    run(folder.path(), 0, "--own-part squared-relu --steps 1 --checkpoint-dir gpt2");
    let text = run(folder.path(), 2, "convert --to hf gpt2 model");
    assert!(text.contains("own.part"), "no family of Hugging Face has the part: {text}");
}

#[test]
fn a_loss_without_smoothing_is_cross_entropy() {
    let (own, theirs) = (train(&format!("{ALL} --smoothing 0")), train(&ALL.replace("--own-loss smoothed", "")));
    for (own, theirs) in own.iter().zip(&theirs) {
        assert!((own - theirs).abs() < 1e-4, "{own} beside {theirs}");
    }
}

#[test]
fn layouts_have_the_numbers_of_one_rank_and_options_are_told_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let part = "--preset tiny-primer --device host";
    for (ranks, layout) in [
        (2, "--own-loss smoothed --activity 0.01 --use-distributed-optimizer"),
        (4, "--own-loss smoothed --pipeline-model-parallel-size 2 --recompute-granularity full"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, "--optimizer novograd --tensor-model-parallel-size 2"),
        (2, "--optimizer novograd --use-distributed-optimizer"),
        // Gradients of the part were added up twice here.
        (2, "--data-parallel-sharding-strategy optim_grads_params"),
    ] {
        let text = run(folder.path(), 0, &format!("verify layout --ranks {ranks} -- {part} {layout}"));
        assert!(text.contains("same numbers as one rank"), "{text}");
    }
    let help = run(folder.path(), 0, "--help");
    for told in ["--novograd-beta1", "--own-part <squared-relu>", "--own-metrics <csv>", "novograd"] {
        assert!(help.contains(told), "{told}");
    }
    assert!(run(folder.path(), 0, "options").contains("| `own.smoothing` | `--smoothing` | `0.1` |"));
    for receivers in ["", "--own-metrics csv"] {
        let text = run(folder.path(), 0, &format!("{part} --steps 1 --smoothing 0.2 --activity 0.01 {receivers}"));
        let unread = "own.smoothing = 0.2 has no effect: nothing of the program's that the run has reads it";
        assert!(text.matches("has no effect").count() == 1 && text.contains(unread), "{text}");
    }
    std::fs::write(folder.path().join("text.txt"), "some text").unwrap();
    for (flags, error) in [
        ("--optimizer novograd --novograd-beta1 2", "own.novograd_beta1 = 2. Rule: a decay is in [0, 1)"),
        ("--own-part other", "own.part = \"other\" (--own-part). Rule: the value is one of squared-relu"),
        ("--own-data counting --data-path text.txt", "Rule: a run has one source of samples"),
        ("--own-part squared-relu --mlp-tiles 2", "own.part with recompute.mlp_tiles = 2"),
        ("--lora-rank 4", "model.lora_rank = 4 with own.part = \"squared-relu\" on a model with"),
        (
            "--experts 4 --swiglu",
            "own.part with model.experts = 4. Rule: the part takes the place of dense feed-forward layers",
        ),
    ] {
        let text = run(folder.path(), 2, &format!("{part} --steps 1 {flags}"));
        assert!(text.contains(error), "{flags}: {text}");
    }
}
