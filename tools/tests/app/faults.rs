//! Faults while running: exit code 3 with one line that names the file, and a reader that goes away is none.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::checkpoints::disk_shim::{Fault, break_file};
use crate::harness::{Folder, arguments, expect, metrics, printed, run};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// A file that can be opened and takes no byte, as on a full disk.
const FULL: &str = "/dev/full";

/// A file of `log` that the disk has no space for, the flags that write it, and the words of the line about it.
type FullFile = (&'static str, &'static str, &'static [&'static str]);

const FILES: &[FullFile] = &[
    ("metrics.jsonl", "", &["the metrics in", "No space left"]),
    ("config.toml", "", &["config.toml in", "No space left"]),
    ("wandb-summary.json", "--wandb", &["wandb-summary.json in", "No space left"]),
    ("graphs.json", "--enable-cuda-graph --graph-report log/graphs.json", &["the graph report, log/graphs.json"]),
    ("graphs.dot", "--enable-cuda-graph --graph-report log/graphs.json", &["the graph report, log/graphs.dot"]),
    ("graphs.svg", "--enable-cuda-graph --graph-report log/graphs.json", &["the graph report, log/graphs.svg"]),
    ("trace.json", "--trace log/trace.json", &["the timeline, log/trace.json", "No space left"]),
];

/// Runs in a folder with a disk that has no space for a file of `log`.
fn run_with_full(folder: &Folder, file: &str, flags: &str) -> Output {
    std::fs::create_dir_all(folder.path("log")).unwrap();
    let mut command = Command::new(TRAINER);
    command.current_dir(&folder.0).args(arguments(&folder.0, flags));
    break_file(&mut command, &folder.0, &folder.path("log").join(file), &Fault::Full);
    command.output().unwrap()
}

#[test]
fn a_file_that_cannot_be_written_ends_a_run_with_exit_code_3_and_its_name() {
    for (what, flags, needles) in FILES {
        let folder = Folder::new("fault");
        let output = run_with_full(&folder, what, &format!("--steps 5 {flags}"));
        let text = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error on rank 0: ")).collect();
        assert!(output.status.code() == Some(3) && errors.len() == 1, "{what}: {}", printed(&output));
        for needle in needles.iter().chain(&["Fix: "]) {
            assert!(errors[0].contains(needle), "{what}: {needle:?} is not in {errors:?}");
        }
    }
}

#[test]
fn a_log_of_messages_that_cannot_be_written_is_one_warning_and_the_run_goes_on() {
    for file in ["run.log", "rank-0.jsonl"] {
        let folder = Folder::new("fault-log");
        let output = run_with_full(&folder, file, "--steps 5");
        expect(&output, 0, &["done: "]);
        let text = String::from_utf8_lossy(&output.stderr);
        let warnings: Vec<&str> = text.lines().filter(|line| line.contains("WARNING: ")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(file) && warnings[0].contains("No space left"), "{text}");
        assert_eq!(metrics(&folder.0).len(), 5);
    }
}

#[test]
fn a_full_disk_under_metrics_or_a_timeline_costs_no_step_that_was_done() {
    for (file, flags, done) in [("metrics.jsonl", "", 2..6), ("trace.json", "--trace log/trace.json", 8..9)] {
        let folder = Folder::new("fault-saved");
        let output = run_with_full(&folder, file, &format!("--steps 8 --save-interval 0 {flags}"));
        expect(&output, 3, &["No space left", "Fix: "]);
        let saved = crate::harness::saved(&folder.0);
        assert!(saved.len() == 1 && done.contains(&saved[0]), "{file}: {saved:?}, {}", printed(&output));
    }
}

#[test]
fn a_run_that_has_diverged_ends_soon_and_keeps_the_checkpoints_from_before() {
    let folder = Folder::new("fault-skips");
    let flags = "--optimizer sgd --lr-warmup-steps 0 --lr-schedule constant --save-interval 2 --checkpoint-keep 2";
    expect(&run(1, &folder.0, &format!("--steps 4 --lr 1e-3 --min-lr 1e-4 {flags}")), 0, &[]);
    assert_eq!(crate::harness::saved(&folder.0), [2, 4]);
    for ranks in [1, 2] {
        let worse = Folder::new("fault-skips-on");
        crate::harness::copy_run(&folder.0, &worse.0, 4);
        let output = run(ranks, &worse.0, &format!("--steps 400 --lr 1e30 --min-lr 1e-4 --clip-grad 0 {flags}"));
        let told = ["10 consecutive updates were skipped", ": training diverged. Earlier checkpoints are kept. Fix: "];
        expect(&output, 3, &told);
        let log = std::fs::read_to_string(worse.path("log/run.log")).unwrap();
        assert!(log.contains(told[0]) && log.contains("continues ") && log.contains("was skipped"), "{log}");
        let (steps, saved) = (metrics(&worse.0).len(), crate::harness::saved(&worse.0));
        assert!(steps < 20 && saved.starts_with(&[4]), "{steps} steps, {saved:?}");
    }
}

#[test]
fn a_graph_report_that_cannot_be_written_is_refused_before_training() {
    let folder = Folder::new("fault-report");
    let refused = "--graph-report /nowhere/graphs.json: No such file";
    expect(&run(1, &folder.0, "--steps 5 --graph-report /nowhere/graphs.json"), 2, &[refused, ". Rule: ", ". Fix: "]);
    assert!(!folder.path("log/metrics.jsonl").exists());
}

#[test]
fn more_memory_than_there_is_is_refused_with_the_numbers_before_any_is_taken() {
    let folder = Folder::new("fault-memory");
    for (ranks, whose) in [(1, ". Rule: "), (2, " for 2 ranks. Rule: ")] {
        let output = run(ranks, &folder.0, "--vocab 33554432 --hidden 32768");
        let numbers = ["error on rank ", ": a rank needs 16.", " TiB of memory (16.", " TiB planned, ", " are free"];
        expect(&output, 2, &numbers);
        expect(&output, 2, &[whose, ". Fix: set a smaller train.micro_batch_size"]);
    }
    assert!(!folder.path("log/metrics.jsonl").exists());
}

#[test]
fn a_run_that_does_not_fit_names_the_settings_that_need_less_with_their_bytes() {
    let folder = Folder::new("fault-cheaper");
    let flags = "--layers 4 --seq-length 1048576 --hidden 1024 --micro-batch-size 8 --global-batch-size 64 \
                 --enable-cuda-graph --pipeline-model-parallel-size 2";
    let output = run(2, &folder.0, flags);
    let settings = ["recompute.granularity = \"selective\" needs ", "recompute.granularity = \"full\" with "];
    expect(&output, 2, &["a rank needs ", "cuda_graph.mempool = \"single\" needs "]);
    expect(&output, 2, &settings);
}

/// Runs `trainer FLAGS` with standard output to a full disk.
fn to_full_disk(folder: &Path, flags: &[String]) -> Output {
    let disk = std::fs::File::options().write(true).open(FULL).unwrap();
    Command::new(TRAINER).current_dir(folder).args(flags).stdout(disk).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn what_was_asked_for_and_cannot_be_printed_is_a_fault_but_a_run_goes_on() {
    let folder = Folder::new("fault-output");
    let training = to_full_disk(&folder.0, &arguments(&folder.0, "--steps 5"));
    expect(&training, 0, &[]);
    assert_eq!(metrics(&folder.0).len(), 5);
    let again = to_full_disk(&folder.0, &arguments(&folder.0, "--steps 7"));
    expect(&again, 0, &[]);
    for command in ["--help", "options", "configs list", "checkpoint list saved", "sample --checkpoint saved"] {
        let flags: Vec<String> = command.split(' ').map(String::from).collect();
        let output = to_full_disk(&folder.0, &flags);
        assert_eq!(output.status.code(), Some(3), "{command}: {}", printed(&output));
        expect(&output, 3, &["error: standard output: No space left"]);
    }
    let mut refused = Command::new(TRAINER);
    refused.args(["--steps", "0"]).stderr(std::fs::File::options().write(true).open(FULL).unwrap());
    assert_eq!(refused.status().unwrap().code(), Some(2), "though it cannot say why");
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_quietly_and_a_run_not_at_all() {
    let folder = Folder::new("fault-pipe");
    expect(&run(1, &folder.0, "--steps 3"), 0, &[]);
    let sample = "sample --checkpoint saved --prompt abc --tokens 4000000000";
    let train = arguments(&folder.0, "--steps 40 --log-interval 1");
    for flags in [sample.split(' ').map(String::from).collect(), train] {
        let mut command = Command::new(TRAINER);
        command.current_dir(&folder.0).args(&flags).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first = [0; 3];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap(); // and nobody reads on
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{flags:?}: {}", printed(&output));
        assert!(!printed(&output).contains("error"), "{flags:?}: {}", printed(&output));
    }
    assert_eq!(metrics(&folder.0).len(), 40);
}

#[test]
fn a_run_whose_loss_ends_as_no_number_says_so_with_exit_code_3_and_keeps_its_checkpoints() {
    for ranks in [1, 2] {
        let folder = Folder::new("fault-diverged");
        let output = run(ranks, &folder.0, "--steps 6 --save-interval 2 --lr 1e30 --clip-grad 0");
        let told = ["error: the loss of the last step is ", ": training diverged. Earlier checkpoints are kept. Fix: "];
        expect(&output, 3, &told);
        let text = printed(&output);
        assert!(text.matches("diverged").count() == 1 && !text.contains("done: loss"), "{text}");
        // Checkpoints at intervals would be no better than the earlier ones.
        assert!(text.contains("no checkpoint after step 4: its loss or gradients are not finite"), "{text}");
        assert_eq!((metrics(&folder.0).len(), crate::harness::saved(&folder.0)), (6, vec![6]));
    }
}
