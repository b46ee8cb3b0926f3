//! Training goes on while a checkpoint is written, and the checkpoint is the one that a run which waits would write.

use std::path::Path;
use std::process::Command;

use super::disk_shim::{Fault, break_file};
use crate::harness::{
    Folder, Running, bits, checkpoint, command, expect, metrics, named, output_of, printed, run, saved, signal,
    start_of, steps_done, wait_for,
};

/// Layouts: ranks and flags.
const LAYOUTS: [(usize, &str); 4] = [
    (1, ""),
    (1, "--enable-cuda-graph --cuda-graph-scope full_iteration"),
    (2, "--data-parallel-sharding-strategy optim_grads_params"),
    (2, "--pipeline-model-parallel-size 2 --layers 2 --enable-cuda-graph"),
];

#[test]
fn every_checkpoint_is_the_one_of_a_run_that_waits_for_it() {
    for (ranks, flags) in LAYOUTS {
        let folders = ["true", "false"].map(|beside| {
            let folder = Folder::new("async-save");
            let flags = format!("--steps 5 --save-interval 1 --checkpoint-keep 0 --async-save={beside} {flags}");
            expect(&run(ranks, &folder.0, &flags), 0, &["done: loss"]);
            folder
        });
        let [beside, waits] = &folders;
        assert_eq!((saved(&beside.0), saved(&waits.0)), ((1..=5).collect(), (1..=5).collect()), "{flags}");
        for step in 1..=5 {
            assert_eq!(bits(&beside.0, step), bits(&waits.0, step), "step {step}, {flags}");
        }
        assert_eq!(metrics(&beside.0), metrics(&waits.0), "{flags}");
    }
}

/// The step of the first checkpoint in [`start_beside`]. The next one is as far away.
const FIRST: usize = 100;

/// Starts a run in which the disk is slow at one file of the first checkpoint, and waits until it has done a step while
/// that checkpoint is written.
fn start_beside(ranks: usize, folder: &Path, file: &str, flags: &str) -> Running {
    let flags = format!("--steps 1000000 --save-interval {FIRST} --eval-interval 0 --log-interval 1000 {flags}");
    let mut run = command(ranks, folder, &flags);
    break_file(&mut run, folder, &checkpoint(folder, FIRST).with_extension("tmp").join(file), &Fault::Slow(2));
    let run = start_of(run, folder);
    wait_for("no step is done while a checkpoint is written", || (steps_done(folder) > FIRST).then_some(()));
    run
}

/// The name of a file that a rank of several writes.
fn model_of(rank: usize) -> String {
    format!("model-{:05}-of-00002.safetensors", rank + 1)
}

#[test]
fn steps_are_done_while_the_disk_of_one_rank_is_slow() {
    for (ranks, flags, file) in [(1, "", "model.safetensors".into()), (2, "--distributed-optimizer", model_of(1))] {
        let folder = Folder::new("async-slow");
        let child = start_beside(ranks, &folder.0, &file, flags);
        assert_eq!(named(&folder.0), [0; 0], "it has no name before it is complete");
        wait_for("it is never complete", || named(&folder.0).contains(&FIRST).then_some(()));
        signal(child.id(), if ranks > 1 { "USR1" } else { "TERM" });
        expect(&output_of(child), 0, &["asked to end: stops after step"]);
    }
}

#[test]
fn a_run_that_is_asked_to_end_waits_for_the_checkpoint_that_is_being_written() {
    let folder = Folder::new("async-asked");
    let child = start_beside(1, &folder.0, "model.safetensors", "");
    signal(child.id(), "TERM");
    expect(&output_of(child), 0, &["asked to end: stops after step"]);
    let waits = Folder::new("async-asked-waits");
    expect(&run(1, &waits.0, &format!("--steps {FIRST} --eval-interval 0")), 0, &[]);
    assert_eq!(bits(&folder.0, FIRST), bits(&waits.0, FIRST), "it has the state of its step, not of a later one");
    let saved = saved(&folder.0);
    assert_eq!((saved[0], saved.last()), (FIRST, Some(&metrics(&folder.0).len())));
}

#[test]
fn a_rank_that_cannot_write_its_part_says_so_once_and_the_run_goes_on() {
    for (ranks, flags, file) in [(1, "", "optimizer.safetensors".into()), (2, "--distributed-optimizer", model_of(1))] {
        let folder = Folder::new("async-fails");
        std::fs::create_dir_all(folder.path("saved")).unwrap();
        let flags = format!("--steps 6 --save-interval 2 --checkpoint-keep 0 {flags}");
        let mut run = command(ranks, &folder.0, &flags);
        break_file(&mut run, &folder.0, &folder.path("saved/step-00000002.tmp").join(file), &Fault::Fails(2));
        let output = output_of(spawned(run));
        let warning = format!("WARNING: checkpoint file {}", checkpoint(&folder.0, 2).with_extension("tmp").display());
        expect(&output, 0, &[&warning, "Input/output error", "The run continues without it.", "done: loss"]);
        assert_eq!(printed(&output).matches("WARNING: checkpoint").count(), 1, "{}", printed(&output));
        assert_eq!(saved(&folder.0), [4, 6], "the files of the one that failed are gone");
    }
}

#[test]
fn a_run_that_is_killed_while_a_checkpoint_is_written_goes_on_from_the_one_before() {
    let folder = Folder::new("async-killed");
    expect(&run(1, &folder.0, "--steps 1 --save-interval 0 --eval-interval 0"), 0, &[]);
    let child = start_beside(1, &folder.0, "model.safetensors", "");
    signal(child.id(), "KILL");
    assert!(!output_of(child).status.success());
    assert_eq!(named(&folder.0), [1], "what was being written has no name");
    expect(&run(1, &folder.0, "--steps 4 --eval-interval 0"), 0, &["at step 1, ", "done: loss"]);
    let whole = Folder::new("async-killed-whole");
    expect(&run(1, &whole.0, "--steps 4 --eval-interval 0"), 0, &[]);
    assert_eq!((saved(&folder.0), bits(&folder.0, 4)), (vec![1, 4], bits(&whole.0, 4)));
    assert_eq!(metrics(&folder.0), metrics(&whole.0));
}

#[test]
fn old_checkpoints_are_removed_while_training_goes_on() {
    let folder = Folder::new("async-removal");
    let flags = format!("--steps 1000000 --save-interval {FIRST} --checkpoint-keep 1 --eval-interval 0");
    let mut run = command(1, &folder.0, &flags);
    std::fs::create_dir_all(folder.path("saved")).unwrap();
    let removed = checkpoint(&folder.0, FIRST).with_extension("old.tmp");
    break_file(&mut run, &folder.0, &removed.join("model.safetensors"), &Fault::Slow(1));
    let run = start_of(run, &folder.0);
    wait_for("nothing is removed", || removed.join("model.safetensors").exists().then_some(()));
    let begun = steps_done(&folder.0);
    wait_for("no step is done meanwhile", || (steps_done(&folder.0) > begun).then_some(()));
    assert!(removed.join("model.safetensors").exists(), "the file system takes its time");
    signal(run.id(), "TERM");
    expect(&output_of(run), 0, &["asked to end: stops after step"]);
    assert!(!removed.exists() && named(&folder.0).len() == 1, "{:?}", named(&folder.0));
}

#[test]
fn the_log_has_the_seconds_of_each_part_of_a_save() {
    for (ranks, flags) in [(1, ""), (2, "--distributed-optimizer --async-save=false")] {
        let folder = Folder::new("save-seconds");
        expect(&run(ranks, &folder.0, &format!("--steps 2 --save-interval 1 {flags}")), 0, &[]);
        let log = std::fs::read_to_string(folder.path("log/rank-0.jsonl")).unwrap();
        for step in 1..=2 {
            let start = format!("checkpoint after step {step}: {}, ", checkpoint(&folder.0, step).display());
            let (_, rest) = log.split_once(&start).unwrap_or_else(|| panic!("no `{start}` in {log}"));
            let line = rest.split_once('"').unwrap().0;
            let number = |part: &str| -> f64 {
                let (_, rest) = line.split_once(part).unwrap_or_else(|| panic!("no `{part}` in {line}"));
                rest.split_once(" s").unwrap().0.parse().unwrap()
            };
            let parts = ["copy ", "hash ", "write ", "sync ", "rename "].map(number);
            assert!(parts.iter().all(|seconds| *seconds <= number(" in ")), "{line}");
        }
    }
}

fn spawned(mut run: Command) -> Running {
    run.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap().into()
}
