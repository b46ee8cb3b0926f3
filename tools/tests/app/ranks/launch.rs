//! `trainer launch` starts ranks on this machine as users expect, and single processes start without MPI.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use launch::online_cores;

use crate::checkpoints::disk_shim::{Fault, break_file};
use crate::harness::{
    Folder, Running, arguments, expect, metrics, mpi_folder, mpirun_command, named, output_of, printed, ranks_below,
    run, saved, signal, start_of, wait_for, wait_until_gone,
};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// `trainer WORDS -- FLAGS` with a small model. As root, nothing in the environment allows mpirun to run.
fn trainer(folder: &Path, words: &[&str], flags: &str) -> Command {
    let mut command = Command::new(TRAINER);
    command.env_remove("OMPI_ALLOW_RUN_AS_ROOT").env_remove("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    command.env("TMPDIR", mpi_folder(folder)).args(words).arg("--").args(arguments(folder, flags));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn launch(folder: &Path, ranks: &str, flags: &str) -> Output {
    trainer(folder, &["launch", "-n", ranks], flags).output().unwrap()
}

#[test]
fn ranks_that_launch_starts_have_the_numbers_of_those_that_mpirun_starts() {
    let (launched, by_mpirun) = (Folder::new("launch-two"), Folder::new("launch-mpirun"));
    let flags = "--steps 5 --enable-cuda-graph";
    expect(&launch(&launched.0, "2", flags), 0, &["done: loss"]);
    expect(&run(2, &by_mpirun.0, flags), 0, &["done: loss"]);
    assert_eq!(metrics(&launched.0), metrics(&by_mpirun.0));
}

#[test]
fn more_ranks_than_cores_start() {
    let folder = Folder::new("launch-many");
    let ranks = (online_cores() + 2).to_string();
    let output = launch(&folder.0, &ranks, &format!("--steps 2 --global-batch-size {ranks} --micro-batch-size 1"));
    expect(&output, 0, &["done: loss"]);
}

#[test]
fn launch_ends_ranks_that_are_all_stopped_and_says_so() {
    let folder = Folder::new("launch-stopped");
    let flags = "--steps 1000000 --eval-interval 0 --log-interval 1000 --distributed-timeout-seconds 4";
    let run = start_of(trainer(&folder.0, &["launch", "-n", "2"], flags), &folder.0);
    let ranks = ranks_below(run.id());
    let ids = ranks.iter().map(u32::to_string);
    assert!(Command::new("kill").arg("-STOP").args(ids).status().unwrap().success());
    let says = "error: every process of the run was stopped (SIGSTOP) for 4 s: 2 ranks";
    expect(&output_of(run), 3, &[says, "parallel.distributed_timeout_seconds = 4"]);
    wait_until_gone(&ranks);
}

#[test]
fn ranks_that_mpirun_starts_from_its_threads_are_no_strangers_to_it() {
    let folder = Folder::new("launch-threads");
    std::fs::create_dir_all(folder.path("log")).unwrap();
    // The launcher looks for strangers in half of the time for set-up.
    let flags = "--steps 5 --setup-timeout-seconds 4 --distributed-timeout-seconds 4";
    let mut command = trainer(&folder.0, &["launch", "-n", "2"], flags);
    // By default mpirun does so from 33 ranks on.
    command.env("OMPI_MCA_odls_base_num_threads", "2");
    // Rank 1 waits for ever before MPI's start, and rank 0 waits for it there.
    break_file(&mut command, &folder.0, &folder.path("log/rank-1.jsonl"), &Fault::Hangs(1));
    let output = command.output().unwrap();
    expect(&output, 3, &["error on rank 0: the ranks have not all joined within 4 s"]);
    assert!(!printed(&output).contains("held up"), "{}", printed(&output));
}

#[test]
fn a_mistake_is_reported_once_and_before_mpirun_starts() {
    let folder = Folder::new("launch-mistakes");
    for (ranks, flags, part) in [
        ("2", "--steps 0", "train.steps = 0"),
        ("2", "--stepz 5", "--stepz is unknown"),
        ("3", "--steps 5", "on 3 ranks"),
        ("2", "--steps 5 --device cuda", "train.device = \"cuda\""),
    ] {
        // No mpirun is found: a mistake that is reported all the same was found before.
        let mut command = trainer(&folder.0, &["launch", "-n", ranks], flags);
        let output = command.env("PATH", "/nonexistent").output().unwrap();
        expect(&output, 2, &[part, ". Rule: ", ". Fix: "]);
        assert_eq!(printed(&output).matches("error: ").count(), 1, "{}", printed(&output));
    }
}

#[test]
fn what_launch_cannot_start_is_answered_with_a_fix() {
    let folder = Folder::new("launch-refused");
    let answer = |words: &[&str]| Command::new(TRAINER).current_dir(&folder.0).args(words).output().unwrap();
    expect(
        &answer(&["launch", "-n", "2", "--", "tokenize", "--output", "x", "y"]),
        2,
        &["launch -- tokenize", "one process"],
    );
    expect(&answer(&["launch", "-n", "2", "--steps", "5"]), 2, &["--steps is unknown", "Fix: put -- before it"]);
    expect(&answer(&["launch", "-n", "0"]), 2, &["`0`", "1..=4096"]);
    let mut nested = mpirun_command(&folder.0);
    let output = nested.args(["-n", "2", TRAINER, "launch", "-n", "2", "--", "--steps", "5"]).output().unwrap();
    expect(&output, 2, &["`trainer launch` was itself started by mpirun or srun", "start it without mpirun"]);
    assert_eq!(printed(&output).matches("error: ").count(), 1, "{}", printed(&output));
}

#[test]
fn without_mpirun_one_rank_trains_and_two_are_refused_with_a_fix() {
    let folder = Folder::new("launch-no-mpirun");
    let without = |ranks: &str| {
        let mut command = trainer(&folder.0, &["launch", "-n", ranks], "--steps 2");
        command.env("PATH", "/nonexistent").output().unwrap()
    };
    expect(&without("1"), 0, &["done: loss"]);
    expect(&without("2"), 2, &["mpirun is not on PATH", "Rule: ", "Fix: install Open MPI"]);
    let alone = Folder::new("launch-default");
    expect(&trainer(&alone.0, &["launch"], "--steps 2 --device host").output().unwrap(), 0, &["done: loss"]);
}

#[test]
fn the_exit_code_is_that_of_the_run() {
    let folder = Folder::new("launch-code");
    std::fs::create_dir(folder.path("log")).unwrap();
    let mut command = trainer(&folder.0, &["launch", "-n", "2"], "--steps 100000");
    // Only rank 0 writes metrics, so only rank 0 fails.
    break_file(&mut command, &folder.0, &folder.path("log/metrics.jsonl"), &Fault::Full);
    expect(&command.output().unwrap(), 3, &["error on rank 0: the metrics in ", "No space left"]);
}

#[test]
fn a_signal_to_launch_ends_all_ranks_with_a_checkpoint() {
    for name in ["TERM", "INT"] {
        let folder = Folder::new("launch-signal");
        let child =
            start_of(trainer(&folder.0, &["launch", "-n", "2"], "--steps 1000000 --save-interval 0"), &folder.0);
        signal(child.id(), name);
        expect(&output_of(child), 0, &["asked to end: stops after step", "saved"]);
        assert_eq!(saved(&folder.0), [metrics(&folder.0).len()]);
    }
}

fn kill(mut child: Running) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killing_launch_ends_its_ranks() {
    let folder = Folder::new("launch-killed");
    let child = start_of(trainer(&folder.0, &["launch", "-n", "2"], "--steps 1000000"), &folder.0);
    let ranks = ranks_below(child.id());
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    kill(child);
    wait_until_gone(&ranks);
}

#[test]
fn a_supervised_launch_starts_again_after_a_fault_and_saves_when_it_is_asked_to_end() {
    let folder = Folder::new("launch-supervised");
    let words = ["supervise", "--", TRAINER, "launch", "-n", "2"];
    let flags = "--steps 1000000 --save-interval 20 --eval-interval 0";
    let child = start_of(trainer(&folder.0, &words, flags), &folder.0);
    let newer = |than: usize| wait_for("no new checkpoint", || named(&folder.0).into_iter().find(|step| *step > than));
    let first = newer(0);
    let ranks = ranks_below(child.id());
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    signal(ranks[1], "KILL");
    wait_until_gone(&ranks);
    let last = named(&folder.0).into_iter().max().unwrap_or(first);
    newer(last);
    signal(child.id(), "TERM");
    let output = output_of(child);
    expect(&output, 75, &["supervise: the run ended (exit code", "asked to end: stops after step"]);
}

/// Whether this user is root.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

#[test]
fn supervised_mpirun_that_would_refuse_root_is_answered_with_the_flag() {
    let folder = Folder::new("launch-root");
    let words = ["supervise", "--max-restarts", "0", "--", "mpirun", "-n", "1", TRAINER];
    let mut command = Command::new(TRAINER);
    command.env_remove("OMPI_ALLOW_RUN_AS_ROOT").env_remove("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    command.env("TMPDIR", mpi_folder(&folder.0)).args(words).args(arguments(&folder.0, "--steps 2"));
    let output = command.output().unwrap();
    match is_root() {
        true => expect(&output, 2, &["error: mpirun as root", "Rule: ", "Fix: mpirun --allow-run-as-root"]),
        false => expect(&output, 0, &["done: loss"]),
    }
}

#[test]
fn ranks_that_mpirun_binds_to_too_few_cores_are_told_and_others_are_not() {
    let notice = |binding: &[&str]| {
        let folder = Folder::new("launch-binding");
        let mut command = Command::new("mpirun");
        crate::harness::set_mpi(&mut command, &folder.0);
        command.args(binding).args(["-n", "1", TRAINER]).args(arguments(&folder.0, "--steps 2"));
        let output = command.output().unwrap();
        expect(&output, 0, &["done: loss"]);
        printed(&output).contains("notice: mpirun bound each rank to 1 of ")
    };
    // By default mpirun binds a single rank to one core.
    assert_eq!(notice(&[]), online_cores() > 1);
    assert!(!notice(&["--bind-to", "none"]), "all cores are there to use");
    assert!(!notice(&["--bind-to", "core"]), "it was asked for");
}

#[test]
fn twenty_single_processes_started_four_at_a_time_all_train() {
    let folders: Vec<Folder> = (0..20).map(|number| Folder::new(&format!("single-{number}"))).collect();
    // One folder for temporary files. None of the processes uses it: MPI would put its own there.
    let temporary = Folder::new("single-temporary");
    let start = |folder: &Folder| {
        let mut command = Command::new(TRAINER);
        command.env("TMPDIR", &temporary.0).args(arguments(&folder.0, "--steps 2 --device host --eval-interval 0"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for four in folders.chunks(4) {
        let children: Vec<Child> = four.iter().map(start).collect();
        for (child, folder) in children.into_iter().zip(four) {
            expect(&output_of(child), 0, &["done: loss"]);
            assert_eq!(metrics(&folder.0).len(), 2);
        }
    }
    assert_eq!(std::fs::read_dir(&temporary.0).unwrap().count(), 0, "a single process started MPI");
}
