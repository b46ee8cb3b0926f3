//! Disks that are full: existing files stay whole, and nothing is begun that the disks cannot hold.

use std::path::Path;
use std::process::Command;

use launch::watch::activity::Activity;
use trainer::checkpoint::verify;

use super::damage::{FILES, FLAGS};
use crate::harness::{Folder, arguments, bits, checkpoint, copy_folder, expect, metrics, printed, run, saved};

#[test]
fn metrics_have_each_step_once_though_their_disk_was_full_for_a_while() {
    let folder = Folder::new("log-full");
    std::fs::create_dir(folder.path("log")).unwrap();
    let script = format!("\"$0\" \"$@\"; code=$?; cp -r {0} {0}.after; exit $code", folder.path("log").display());
    let Some(mut command) = on_small_disk("64k", &folder.path("log"), &script) else { return };
    let run_of = crate::harness::command(1, &folder.0, "--steps 100000 --eval-interval 0");
    let output = command.arg(run_of.get_program()).args(run_of.get_args()).output().unwrap();
    expect(&output, 3, &["No space left on device", "stops after step "]);
    let done = saved(&folder.0)[0];
    let there = std::fs::read_to_string(folder.path("log.after/metrics.jsonl")).unwrap();
    assert!(there.is_empty() || there.ends_with('\n'), "no line is there in part");
    assert!(there.lines().count() < done && checkpoint(&folder.0, done).join("metrics.jsonl").exists());
    std::fs::remove_dir(folder.path("log")).unwrap();
    std::fs::rename(folder.path("log.after"), folder.path("log")).unwrap();
    expect(&run(1, &folder.0, &format!("--steps {} --eval-interval 0", done + 2)), 0, &["done: loss"]);
    assert_eq!(metrics(&folder.0).len(), done + 2);
    assert!(!checkpoint(&folder.0, done + 2).join("metrics.jsonl").exists(), "later ones need none");
}

/// Runs the trainer under a limit on the size of a file, in KiB. A write fails as on a full disk or by a quota.
fn run_limited(kib: usize, folder: &Path, flags: &str) -> std::process::Output {
    let script = format!("ulimit -f {kib}; exec \"$0\" \"$@\"");
    let trainer = env!("CARGO_BIN_EXE_trainer");
    Command::new("bash").args(["-c", &script, trainer]).args(arguments(folder, flags)).output().unwrap()
}

#[test]
fn a_write_that_fails_leaves_earlier_checkpoints_and_ends_the_run_only_at_its_end() {
    // MPI makes files of 4 MiB for itself, so the limit is above that, and the model's file, 8 MiB, above the limit.
    let large = "--vocab 32768 --hidden 64";
    let folder = Folder::new("limit");
    expect(&run(1, &folder.0, &format!("--steps 2 {large}")), 0, &[]);
    let before = bits(&folder.0, 2);
    let output = run_limited(6 << 10, &folder.0, &format!("{FLAGS} {large}"));
    let warning = format!("WARNING: checkpoint file {}", checkpoint(&folder.0, 4).with_extension("tmp").display());
    expect(&output, 3, &[&warning, "model.safetensors was not written: ", "needs ", " free", "The run continues"]);
    expect(&output, 3, &["error on rank 0: checkpoint file ", "step-00000006.tmp/model.safetensors", "Fix: "]);
    assert!(std::fs::read_to_string(folder.path("log/run.log")).unwrap().contains(&warning), "the log has it too");
    assert_eq!(metrics(&folder.0).len(), 6, "the run goes on after the first failure");
    assert_eq!((saved(&folder.0), bits(&folder.0, 2)), (vec![2], before), "nothing half written stays");
}

/// `bash -c SCRIPT trainer` with `folder` as a disk of that size, in a mount namespace of its own, if the system allows
/// that. If it does not, `./x test` says so and sets NO_SMALL_DISK.
pub fn on_small_disk(size: &str, folder: &Path, script: &str) -> Option<Command> {
    let mount = format!("mount -t tmpfs -o size={size} tmpfs {}", folder.display());
    let spaced = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "bash", "-c", &format!("{mount} && {script}")]);
        command
    };
    let allowed = spaced("true").status().is_ok_and(|status| status.success());
    let told = "this system lets nobody mount a small disk. To go without this test set NO_SMALL_DISK=1";
    assert!(allowed || std::env::var_os("NO_SMALL_DISK").is_some(), "{told}");
    allowed.then(|| spaced(script))
}

/// Runs the trainer on `ranks` ranks with checkpoints on a disk of that size. The disk's files vanish with it
/// afterwards, so they are copied to `saved.after`. None if the system lets nobody mount one.
fn run_on_small_disk(size: &str, ranks: usize, folder: &Folder, flags: &str) -> Option<std::process::Output> {
    std::fs::create_dir(folder.path("saved")).unwrap();
    let script = format!("\"$0\" \"$@\"; code=$?; cp -r {0} {0}.after; exit $code", folder.path("saved").display());
    let mut command = on_small_disk(size, &folder.path("saved"), &script)?;
    let run = crate::harness::command(ranks, &folder.0, flags);
    command.arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Some(command.output().unwrap())
}

/// Checks the files that the trainer on `ranks` ranks leaves on a disk with room for one checkpoint and not for two.
fn a_disk_for_one_checkpoint(ranks: usize, flags: &str) {
    let (folder, whole) = (Folder::new("disk"), Folder::new("disk-whole"));
    let Some(output) = run_on_small_disk("300k", ranks, &folder, &format!("{FLAGS} {flags}")) else { return };
    expect(&run(ranks, &whole.0, &format!("--steps 2 {flags}")), 0, &[]);
    let bytes: u64 = FILES.iter().map(|file| checkpoint(&whole.0, 2).join(file).metadata().unwrap().len()).sum();
    assert!((160 << 10..280 << 10).contains(&bytes), "{bytes} bytes: choose another size of disk");
    expect(&output, 3, &["step-00000004 was not written: it needs ", "are free there", "The run continues"]);
    expect(
        &output,
        3,
        &[
            "WARNING: checkpoint ",
            "step-00000006 needs ",
            "the last checkpoint, so the trainer tries",
            "step-00000006.tmp/",
        ],
    );
    copy_folder(&folder.path("saved.after/step-00000002"), &checkpoint(&folder.0, 2));
    assert_eq!(bits(&folder.0, 2), bits(&whole.0, 2), "the earlier checkpoint is whole");
    let left = |name: &str| folder.path("saved.after").join(name).exists();
    assert!(!left("step-00000004.tmp") && !left("step-00000006.tmp") && metrics(&folder.0).len() == 6);
}

#[test]
fn a_checkpoint_that_the_disk_cannot_hold_is_not_begun_unless_it_is_the_last() {
    a_disk_for_one_checkpoint(1, "");
}

#[test]
fn two_ranks_with_graphs_do_not_begin_a_checkpoint_that_the_disk_cannot_hold() {
    a_disk_for_one_checkpoint(2, "--enable-cuda-graph");
}

#[test]
fn a_smaller_number_to_keep_makes_room_on_a_full_disk_and_the_newest_stays() {
    // Room for three checkpoints of 257 KiB each, and not for four.
    for (keep, code) in [(2, 0), (3, 3)] {
        let folder = Folder::new("disk-keep");
        std::fs::create_dir(folder.path("saved")).unwrap();
        let run = |flags: &str| {
            let command = crate::harness::command(2, &folder.0, flags);
            let words = [command.get_program()].into_iter().chain(command.get_args());
            words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
        };
        let (first, second) = (run("--steps 6 --save-interval 2"), run(&format!("--steps 7 --checkpoint-keep {keep}")));
        let script =
            format!("{first} && {second}; code=$?; cp -r {0} {0}.after; exit $code", folder.path("saved").display());
        let Some(mut command) = on_small_disk("900k", &folder.path("saved"), &script) else { return };
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = command.output().unwrap();
        expect(&output, code, &["continues ", "at step 6"]);
        let there = |name: &str| folder.path("saved.after").join(name).exists();
        assert!(there("step-00000006"), "{}", printed(&output));
        assert_eq!((there("step-00000002"), there("step-00000007")), (keep == 3, keep == 2), "{}", printed(&output));
    }
}

#[test]
fn stages_of_unlike_sizes_need_the_space_of_what_they_write_and_no_more() {
    // The first stage has nearly all of the 5 MiB.
    let folder = Folder::new("disk-stages");
    let flags = "--steps 1 --layers 2 --vocab 12288 --pipeline-model-parallel-size 2";
    let Some(output) = run_on_small_disk("8m", 2, &folder, flags) else { return };
    expect(&output, 0, &["done: loss"]);
    assert!(!printed(&output).contains("WARNING"), "{}", printed(&output));
    let written = verify(&folder.path("saved.after/step-00000001"), &Activity::default()).unwrap().bytes();
    assert!((4 << 20..6 << 20).contains(&written), "{written} bytes: choose another size of disk");
}
