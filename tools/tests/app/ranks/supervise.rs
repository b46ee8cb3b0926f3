//! A supervised run comes to its end whatever happens to it.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::network::listening_ports;
use crate::harness::{
    Folder, Running, arguments, assert_same, children, expect, metrics, named, output_of, printed, ranks_below, run,
    saved, set_mpi, signal, start, start_of, steps_done, wait_for, wait_until_gone,
};

/// `trainer ARGUMENTS`, run in `folder`.
fn trainer(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    set_mpi(&mut command, folder);
    command.current_dir(folder).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A supervised run on two ranks.
fn supervised(folder: &Path, flags: &str) -> Command {
    let starter = ["supervise", "--", "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"];
    let mut command = trainer(folder, &starter);
    command.arg(env!("CARGO_BIN_EXE_trainer")).args(arguments(folder, flags));
    command
}

/// Waits for a checkpoint of `from` steps or more; its steps.
fn checkpoint_from(folder: &Path, from: usize) -> usize {
    let newer = || named(folder).into_iter().find(|step| *step >= from);
    wait_for(&format!("no checkpoint of {from} steps or more"), newer)
}

#[test]
fn a_run_whose_ranks_are_killed_again_and_again_ends_with_the_bits_of_one_that_was_not() {
    let (folder, unbroken) = (Folder::new("supervise-kills"), Folder::new("supervise-unbroken"));
    let flags = "--steps 3000 --save-interval 20 --eval-interval 0 --enable-cuda-graph";
    let mut child = Running::from(supervised(&folder.0, flags).spawn().unwrap());
    let mut from = 1;
    for rank in [0, 1] {
        checkpoint_from(&folder.0, from);
        let mpirun = children(child.id())[0];
        signal(children(mpirun)[rank], "KILL");
        wait_until_gone(&[mpirun]);
        // Only the next start makes more.
        from = named(&folder.0).pop().unwrap() + 1;
    }
    // Long enough for two kills, and no longer: it is asked to end, and goes on to another end.
    from = checkpoint_from(&folder.0, from);
    assert!(child.try_wait().unwrap().is_none());
    signal(child.id(), "TERM");
    let output = output_of(child);
    expect(
        &output,
        75,
        &["supervise: the run ended (exit code", "after a new checkpoint", "asked to end: stops after step"],
    );
    let text = printed(&output);
    assert_eq!(text.matches("supervise: the run ended").count(), 2, "{text}");
    let cause = "run.log says: error on rank 1: the process died without a word";
    assert!(text.contains(cause), "{text}");
    let last = *saved(&folder.0).last().unwrap();
    assert!(last >= from);
    let flags = format!("--steps {} --save-interval 20 --eval-interval 0", last + 3);
    expect(
        &output_of(supervised(&folder.0, &flags).spawn().unwrap()),
        0,
        &[&format!("at step {last}, "), "done: loss"],
    );
    expect(&run(2, &unbroken.0, &flags), 0, &[]);
    assert_same(&folder, &unbroken, "unbroken");
}

#[test]
fn a_launcher_that_passes_no_signal_on_does_not_keep_a_run_from_its_end() {
    let folder = Folder::new("supervise-deaf");
    let script = "trap '' USR1; \"$@\"; exit $?";
    let mut command =
        trainer(&folder.0, &["supervise", "--", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_trainer")]);
    let child = Running::from(command.args(arguments(&folder.0, "--steps 100000 --save-interval 2")).spawn().unwrap());
    checkpoint_from(&folder.0, 2);
    signal(child.id(), "TERM");
    expect(&output_of(child), 75, &["asked to end: stops after step"]);
}

#[test]
fn a_fork_goes_on_from_its_own_checkpoints_once_it_has_some() {
    let (start, folder) = (Folder::new("supervise-start"), Folder::new("supervise-fork"));
    expect(&run(1, &start.0, "--steps 2"), 0, &[]);
    let flags = |steps: usize| format!("--steps {steps} --resume {}", start.path("saved").display());
    for (steps, from) in [(4, 2), (6, 4)] {
        let output = output_of(supervised(&folder.0, &flags(steps)).spawn().unwrap());
        expect(&output, 0, &[&format!("step-{from:08} at step {from}, "), "done: loss"]);
    }
}

#[test]
fn a_fault_that_comes_again_ends_it_with_3() {
    let folder = Folder::new("supervise-fault");
    // It diverges: ten consecutive updates are skipped.
    let command = supervised(&folder.0, "--steps 50 --save-interval 2 --lr 1e38");
    let mut all: Vec<_> = command.get_args().map(|word| word.to_os_string()).collect();
    all.splice(1..1, ["--max-restarts".into(), "1".into()]);
    let output = output_of(trainer(&folder.0, &[]).args(all).spawn().unwrap());
    expect(&output, 3, &["starts it again in 2 s, without a new checkpoint, 1 of at most 1 in a row"]);
}

/// A supervised run of one process.
fn supervised_single(folder: &Path, flags: &str) -> Command {
    let mut command = trainer(folder, &["supervise", "--", env!("CARGO_BIN_EXE_trainer")]);
    command.args(arguments(folder, flags));
    command
}

/// A supervised run on two ranks that goes on until it is asked to end, with checkpoints; it has begun.
fn endless(folder: &Path) -> Running {
    let run = supervised(folder, "--steps 1000000 --save-interval 20 --eval-interval 0 --log-interval 1000");
    let run = start_of(run, folder);
    checkpoint_from(folder, 1);
    run
}

/// Waits for a checkpoint that a later start has made, and asks the run to end.
fn goes_on_and_ends(folder: &Path, run: Running) -> String {
    let last = named(folder).pop().unwrap();
    checkpoint_from(folder, last + 1);
    signal(run.id(), "TERM");
    let output = output_of(run);
    expect(&output, 75, &["supervise: the run ended (", "; starts it again in ", "asked to end: stops after step"]);
    printed(&output)
}

#[test]
fn mpirun_that_outlives_its_ranks_is_ended_and_the_run_starts_again() {
    let folder = Folder::new("supervise-deserted");
    let run = endless(&folder.0);
    let mpirun = children(run.id())[0];
    // A stranger begins a message and does not end it. That holds up mpirun, so it sees no rank end.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for port in listening_ports(mpirun) {
        // A port may be of IPv6 alone.
        if let Ok(mut stranger) = TcpStream::connect(("127.0.0.1", port)) {
            stranger.write_all(b"OPA").unwrap();
            strangers.push(stranger);
        }
    }
    let ranks = ranks_below(mpirun);
    signal(ranks[1], "KILL");
    wait_until_gone(&ranks);
    wait_until_gone(&[mpirun]);
    let text = goes_on_and_ends(&folder.0, run);
    assert!(text.contains("supervise: the run ended (all ranks ended, and their launcher did not); starts"), "{text}");
    drop(strangers);
}

/// The ranks of a supervised run. A single one is the supervisor's child.
fn ranks_of(run: &Running) -> Vec<u32> {
    let child = children(run.id())[0];
    let below = ranks_below(child);
    if below.is_empty() { vec![child] } else { below }
}

/// Sends a signal to several processes at once.
fn signal_all(processes: &[u32], name: &str) {
    let ids = processes.iter().map(u32::to_string);
    assert!(Command::new("kill").arg(format!("-{name}")).args(ids).status().unwrap().success());
}

#[test]
fn a_stranger_who_holds_up_the_start_is_named_and_the_run_starts_again() {
    let folder = Folder::new("supervise-held-up");
    let go = folder.path("go");
    // The ranks begin once the stranger is connected.
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; exec \"$@\"", go.display());
    let words = ["supervise", "--", "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", "bash", "-c", &script];
    let mut command = trainer(&folder.0, &words);
    let flags = "--steps 1000000 --save-interval 20 --eval-interval 0 --log-interval 1000 --setup-timeout-seconds 24 \
                 --distributed-timeout-seconds 12";
    command.args(["bash", env!("CARGO_BIN_EXE_trainer")]).args(arguments(&folder.0, flags));
    let run = Running::from(command.spawn().unwrap());
    let mpirun = wait_for("mpirun starts no ranks", || {
        let mpirun = *children(run.id()).first()?;
        (children(mpirun).len() == 2).then_some(mpirun)
    });
    // They send nothing. A port may be of IPv6 alone.
    let connect = |port: u16| TcpStream::connect(("127.0.0.1", port)).ok();
    let strangers: Vec<TcpStream> = listening_ports(mpirun).into_iter().filter_map(connect).collect();
    std::fs::write(&go, "").unwrap();
    wait_until_gone(&[mpirun]);
    checkpoint_from(&folder.0, 1);
    signal(run.id(), "TERM");
    let output = output_of(run);
    let says =
        format!("supervise: the run ended (the launcher was held up for 12 s by process {} (", std::process::id());
    expect(&output, 75, &[&says, "), which is connected to its port ", "; starts it again in 2 s"]);
    drop(strangers);
}

#[test]
fn ranks_that_are_all_stopped_are_ended_after_the_limit_and_the_run_starts_again() {
    type Start = fn(&Path, &str) -> Command;
    for (start, ranks) in [(supervised as Start, "2 ranks"), (supervised_single, "1 rank")] {
        let folder = Folder::new("supervise-stopped");
        let flags = "--steps 1000000 --save-interval 20 --eval-interval 0 --log-interval 1000 \
                     --distributed-timeout-seconds 4";
        let run = start_of(start(&folder.0, flags), &folder.0);
        checkpoint_from(&folder.0, 1);
        let stopped = ranks_of(&run);
        signal_all(&stopped, "STOP");
        wait_until_gone(&stopped);
        let text = goes_on_and_ends(&folder.0, run);
        let says = format!(
            "supervise: the run ended (every process of the run was stopped (SIGSTOP) for 4 s: {ranks} \
             (parallel.distributed_timeout_seconds = 4)); starts it again in "
        );
        assert!(text.contains(&says), "{text}");
    }
}

#[test]
fn a_request_to_end_reaches_stopped_ranks_and_they_save() {
    for start in [supervised, supervised_single] {
        let folder = Folder::new("supervise-stopped-asked");
        let flags = "--steps 1000000 --save-interval 0 --eval-interval 0 --log-interval 1000";
        let run = start_of(start(&folder.0, flags), &folder.0);
        signal_all(&ranks_of(&run), "STOP");
        signal(run.id(), "TERM");
        expect(&output_of(run), 75, &["asked to end: stops after step"]);
        assert_eq!(saved(&folder.0), [metrics(&folder.0).len()]);
    }
}

#[test]
fn a_run_that_was_stopped_as_a_whole_goes_on_when_it_is_continued() {
    let folder = Folder::new("supervise-paused");
    let flags =
        "--steps 1000000 --save-interval 0 --eval-interval 0 --log-interval 1000 --distributed-timeout-seconds 6";
    let run = start_of(supervised(&folder.0, flags), &folder.0);
    let mut all = vec![run.id(), children(run.id())[0]];
    all.extend(ranks_of(&run));
    signal_all(&all, "STOP");
    sleep(Duration::from_secs(8));
    signal_all(&all, "CONT");
    let before = steps_done(&folder.0);
    wait_for("it does not go on", || (steps_done(&folder.0) > before + 10).then_some(()));
    signal(run.id(), "TERM");
    let output = output_of(run);
    expect(&output, 75, &["asked to end: stops after step"]);
    assert!(!printed(&output).contains("starts it again"), "{}", printed(&output));
}

#[test]
fn ranks_whose_mpirun_was_killed_end_and_their_shared_memory_goes_at_the_next_start() {
    let folder = Folder::new("supervise-orphans");
    let run = endless(&folder.0);
    let mpirun = children(run.id())[0];
    let ranks = ranks_below(mpirun);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", ranks[0])).unwrap();
    let segments: BTreeSet<&Path> =
        maps.lines().filter_map(|line| Some(Path::new(&line[line.find("/dev/shm/vader_segment")?..]))).collect();
    assert!(segments.len() == 2 && segments.iter().all(|segment| segment.exists()), "{segments:?}");
    signal(mpirun, "KILL");
    wait_until_gone(&ranks);
    goes_on_and_ends(&folder.0, run);
    assert!(!segments.iter().any(|segment| segment.exists()), "{segments:?}");
}

#[test]
fn killing_the_supervisor_ends_its_ranks() {
    let folder = Folder::new("supervise-killed");
    let mut run = endless(&folder.0);
    let mpirun = children(run.id())[0];
    let ranks = ranks_below(mpirun);
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    run.kill().unwrap();
    wait_until_gone(&[&ranks[..], &[mpirun]].concat());
    // The folders are free again, and the run goes on.
    let flags = format!("--steps {} --eval-interval 0", named(&folder.0).pop().unwrap() + 2);
    let again = supervised(&folder.0, &flags).spawn().unwrap();
    expect(&output_of(again), 0, &["continues ", "done: loss"]);
}

#[test]
fn a_file_that_is_away_for_a_moment_does_not_end_a_run_that_has_begun() {
    let folder = Folder::new("supervise-away");
    let (data, away, starts) = (folder.path("data.txt"), folder.path("away.txt"), folder.path("starts"));
    std::fs::write(&data, "to be or not to be ".repeat(2000)).unwrap();
    let script = "echo >> starts; exec \"$@\"";
    let words =
        ["supervise", "--max-restarts", "20", "--", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_trainer")];
    let mut command = trainer(&folder.0, &words);
    let flags = format!(
        "--steps 1000000 --save-interval 20 --eval-interval 0 --log-interval 1000 --data-path {}",
        data.display()
    );
    command.args(arguments(&folder.0, &flags));
    let run = start_of(command, &folder.0);
    checkpoint_from(&folder.0, 1);
    std::fs::rename(&data, &away).unwrap();
    signal(children(run.id())[0], "KILL");
    // The third start comes after the second was refused.
    let started = || std::fs::read_to_string(&starts).unwrap().lines().count();
    wait_for("it is not started again", || (started() >= 3).then_some(()));
    std::fs::rename(&away, &data).unwrap();
    let text = goes_on_and_ends(&folder.0, run);
    assert!(text.contains("the run ended (exit code 2); starts it again in 2 s"), "{text}");
}

#[test]
fn a_run_whose_folder_is_in_use_is_tried_until_it_is_free() {
    let folder = Folder::new("supervise-in-use");
    let mut first = start(1, &folder.0, "--save-interval 0 --eval-interval 0");
    let starts = folder.path("starts");
    let script = "echo >> starts; exec \"$@\"";
    let words =
        ["supervise", "--max-restarts", "20", "--", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_trainer")];
    let mut command = trainer(&folder.0, &words);
    let second = Running::from(command.args(arguments(&folder.0, "--steps 3")).spawn().unwrap());
    let started = || std::fs::read_to_string(&starts).unwrap_or_default().lines().count();
    wait_for("it is not started again", || (started() >= 2).then_some(()));
    first.kill().unwrap();
    first.wait().unwrap();
    expect(&output_of(second), 0, &["is in use by process", "(exit code 2); starts it again in 2 s", "done: loss"]);
}
