//! Signals end a run cleanly, and a folder belongs to one run at a time.

use std::os::unix::process::ExitStatusExt;

use crate::harness::{
    Folder, assert_same, checkpoint, expect, metrics, output_of, printed, rank_ids, run, saved, signal, signals, start,
    wait_for,
};

/// Goes on for three steps after a run that was asked to end, and compares with one that never was.
fn assert_goes_on(folder: &Folder, ranks: usize) {
    let steps = metrics(&folder.0).len();
    assert_eq!(saved(&folder.0), [steps], "the checkpoint is of the last step done");
    let flags = format!("--steps {}", steps + 3);
    let unbroken = Folder::new("signal-unbroken");
    expect(&run(ranks, &unbroken.0, &flags), 0, &[]);
    expect(&run(ranks, &folder.0, &flags), 0, &[&format!("at step {steps}, ")]);
    // The unbroken run validates at its end; so does this one, three steps after its first end.
    assert_same(folder, &unbroken, "unbroken");
}

#[test]
fn sigterm_and_sigint_finish_the_step_save_and_exit_with_0() {
    for name in ["TERM", "INT"] {
        let folder = Folder::new(&format!("signal-{name}"));
        let child = start(1, &folder.0, "--save-interval 0 --enable-cuda-graph");
        signal(child.id(), name);
        expect(&output_of(child), 0, &["asked to end: stops after step", "saved"]);
        assert_goes_on(&folder, 1);
    }
}

#[test]
fn a_signal_to_one_of_two_ranks_ends_both_after_the_same_step() {
    let folder = Folder::new("signal-one");
    let child = start(2, &folder.0, "--save-interval 0 --enable-cuda-graph --cuda-graph-scope full_iteration");
    let ranks = rank_ids(&child);
    assert_eq!(ranks.len(), 2, "mpirun starts its ranks itself: {ranks:?}");
    signal(ranks[1], "TERM");
    expect(&output_of(child), 0, &["asked to end: stops after step", "saved"]);
    assert_goes_on(&folder, 2);
}

#[test]
fn an_exit_that_is_due_saves_ends_all_ranks_with_0_and_says_why() {
    let interval = Folder::new("exit-interval");
    let flags = "--steps 1000000 --save-interval 0 --exit-interval 4";
    expect(&run(1, &interval.0, flags), 0, &["train.exit_interval = 4: stops after step 4 of 1000000, saved"]);
    // The same command goes on to the next one.
    expect(&run(1, &interval.0, flags), 0, &["at step 4", "train.exit_interval = 4: stops after step 8 of "]);
    // It is no change of the run, and changes no bit of it.
    let last = "--steps 10 --exit-duration-in-mins 60 --exit-interval 1000";
    let output = run(1, &interval.0, last);
    expect(&output, 0, &["at step 8", "done: loss"]);
    assert!(!printed(&output).contains("train.exit"), "{}", printed(&output));
    let unbroken = Folder::new("exit-unbroken");
    expect(&run(1, &unbroken.0, "--steps 10"), 0, &["done: loss"]);
    assert_same(&interval, &unbroken, "");

    // Two seconds, set-up among them.
    let duration = Folder::new("exit-duration");
    let flags = "--steps 1000000 --save-interval 0 --exit-duration-minutes 0.033";
    let output = run(2, &duration.0, flags);
    expect(&output, 0, &["train.exit_duration_minutes = 0.033 are over: stops after step ", ", saved"]);
    assert_eq!(saved(&duration.0), [metrics(&duration.0).len()]);
}

#[test]
fn sigusr1_to_mpirun_reaches_all_ranks() {
    let folder = Folder::new("signal-usr1");
    let child = start(4, &folder.0, "--save-interval 0 --enable-cuda-graph");
    signal(child.id(), "USR1");
    expect(&output_of(child), 0, &["asked to end: stops after step", "saved"]);
    assert_eq!(saved(&folder.0), [metrics(&folder.0).len()]);
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let folder = Folder::new("signal-twice");
    let child = start(1, &folder.0, "--save-interval 0 --eval-interval 0");
    // Both have come when it goes on, however busy the machine is.
    signals(child.id(), &["STOP", "TERM", "INT", "CONT"]);
    let output = output_of(child);
    assert!(matches!(output.status.code(), Some(130 | 143)), "{:?}", output.status);
    assert_eq!(saved(&folder.0), Vec::<usize>::new(), "nothing is saved");
}

#[test]
fn the_same_signal_twice_at_once_as_timeout_sends_it_is_one_request() {
    let folder = Folder::new("signal-repeated");
    let child = start(1, &folder.0, "--save-interval 0 --global-batch-size 256 --eval-interval 0");
    signals(child.id(), &["TERM", "TERM"]);
    expect(&output_of(child), 0, &["asked to end: stops after step", "saved"]);
    assert_eq!(saved(&folder.0), [metrics(&folder.0).len()]);
}

#[test]
fn a_signal_before_the_first_step_ends_the_process_at_once() {
    let folder = Folder::new("signal-early");
    // A plan of so many microbatches takes long.
    let flags = "--micro-batch-size 1 --global-batch-size 65536 --enable-cuda-graph --cuda-graph-scope full_iteration";
    let mut command = crate::harness::command(1, &folder.0, flags);
    let mut child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    // The folder is taken after signals are listened to.
    wait_for("the folder is not taken", || folder.path("log/run.lock").exists().then_some(()));
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_run_without_checkpoints_says_on_a_signal_that_nothing_is_kept() {
    let folder = Folder::new("signal-unsaved");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.current_dir(&folder.0).args(["--threads", "1", "--log-dir", "log"]);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let metrics = || std::fs::read_to_string(folder.path("log/metrics.jsonl")).unwrap_or_default();
    wait_for("no step was done", || (!metrics().is_empty()).then_some(()));
    signal(child.id(), "TERM");
    expect(&output_of(child), 0, &["not saved, because checkpoint.dir is unset"]);
}

#[test]
fn a_second_run_in_a_folder_in_use_is_refused_until_the_first_is_gone() {
    let (folder, other) = (Folder::new("lock"), Folder::new("lock-other"));
    let mut child = start(1, &folder.0, "--save-interval 0");
    let holder = format!("is in use by process {}", child.id());
    expect(&run(1, &folder.0, "--steps 2"), 2, &["logging.dir = ", &holder, "one run at a time", "set another"]);
    let shared = format!("--steps 2 --save {}", folder.path("saved").display());
    expect(&run(1, &other.0, &shared), 2, &["checkpoint.dir = ", &holder, "one run at a time", "set another"]);
    signal(child.id(), "KILL");
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    expect(&run(1, &folder.0, "--steps 2"), 0, &["done: loss"]);
    assert!(checkpoint(&folder.0, 2).exists());
}

#[test]
fn an_interrupted_tokenize_or_batches_leaves_nothing_behind() {
    let folder = Folder::new("signal-files");
    std::fs::write(folder.path("text.txt"), "a line of text\n".repeat(300_000)).unwrap();
    let tokenize = "tokenize --output out --shard-tokens 500 text.txt"; // many small files, each synced
    let batches = "batches --output out --steps 2000000 --seq-length 64";
    for (flags, name) in [(tokenize, "TERM"), (batches, "INT")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.current_dir(&folder.0).args(flags.split(' ')).stderr(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        let there = || std::fs::read_dir(&folder.0).unwrap().count();
        wait_for("nothing is written", || (there() >= 2).then_some(()));
        signal(child.id(), name);
        expect(&output_of(child), 3, &["error: interrupted: out was not written. Fix: start again"]);
        assert_eq!(there(), 1, "{flags}: only the text is left");
    }
}

#[test]
fn what_a_killed_tokenize_leaves_goes_when_it_starts_again() {
    let folder = Folder::new("signal-killed-files");
    std::fs::write(folder.path("text.txt"), "a line of text\n".repeat(300_000)).unwrap();
    let there = || std::fs::read_dir(&folder.0).unwrap().count();
    let start = |tokens: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.current_dir(&folder.0).args(["tokenize", "--output", "out", "--shard-tokens", tokens, "text.txt"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut killed = start("500"); // many small files, each synced
    wait_for("nothing is written", || (there() >= 2).then_some(()));
    killed.kill().unwrap();
    assert_eq!(killed.wait().unwrap().signal(), Some(9));
    assert_eq!(there(), 2, "the text, and what was written");
    expect(&output_of(start("100000000")), 0, &["in 1 token file, out"]);
    assert_eq!(there(), 2, "the text, and the result");
    assert!(folder.path("out/tokens_000000.bin").exists());
}
