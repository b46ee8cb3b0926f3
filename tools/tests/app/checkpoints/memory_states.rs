//! States in shared memory: processes that died under a supervisor go on from the newest of them, to the bit.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use launch::watch::activity::Activity;
use trainer::checkpoint::verify;

use super::disk_shim::{Fault, break_file};
use super::full_disk::on_small_disk;
use crate::harness::{
    Folder, Running, arguments, assert_same, checkpoint, children, command, copy_folder, expect, named, output_of,
    printed, ranks_below, run, saved, set_mpi, signal, start_of, steps_done, wait_for, wait_until_gone,
};

/// The variable that tells a run the folder of its states.
const FOLDER: &str = "TRAINER_STATE_FOLDER";

/// A run that goes on for long, with a state in memory every 10 steps.
const ENDLESS: &str = "--steps 1000000 --eval-interval 0 --log-interval 1000 --memory-save-interval 10";

/// Starts the trainer, unless the test has made the file `stop`.
const UNLESS_STOPPED: &str = "[ ! -e stop ] || exec sleep 1000; exec \"$@\"";

/// A supervised run of one process, or of several under mpirun.
fn supervised(ranks: usize, folder: &Path, words: &[&str], flags: &str) -> Command {
    let trainer = env!("CARGO_BIN_EXE_trainer");
    let mut command = Command::new(trainer);
    set_mpi(&mut command, folder);
    command.current_dir(folder).arg("supervise").args(words).arg("--");
    match ranks {
        1 => command.args(["bash", "-c", UNLESS_STOPPED, "bash"]),
        _ => command.args(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()]),
    };
    command.arg(trainer).args(arguments(folder, flags)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The folders of a supervisor in shared memory.
fn states_of(supervisor: u32) -> Vec<PathBuf> {
    let start = format!("/dev/shm/trainer-state-{supervisor}-");
    let entries = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().starts_with(&start)).collect()
}

/// The steps of the states in a folder.
fn states_in(folder: &Path) -> Vec<usize> {
    let entries = std::fs::read_dir(folder).map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    let names = entries.into_iter().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut steps: Vec<usize> = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort();
    steps
}

/// Stops the ranks of a supervised run when its newest state in memory is newer than its newest checkpoint, and no checkpoint
/// is being written. Returns the ranks, the folder of the states and the steps of that state.
fn stopped_ahead(run: &Running, folder: &Path) -> (Vec<u32>, PathBuf, usize) {
    wait_for("no state in memory is ahead of the disk", || {
        let memory = states_of(run.id()).pop()?;
        let state = *states_in(&memory).last()?;
        let child = *wait_for("the run has no process", || children_of(run)).first()?;
        let below = ranks_below(child);
        let ranks = if below.is_empty() { vec![child] } else { below };
        ranks.iter().for_each(|rank| signal(*rank, "STOP"));
        sleep(Duration::from_millis(50)); // threads stop one by one
        let newest = states_in(&memory).last().copied().unwrap_or(0).max(state);
        let files = std::fs::read_dir(folder.join("saved")).into_iter().flatten().flatten();
        let is_written = files.map(|file| file.path()).any(|path| path.extension().is_some_and(|end| end == "tmp"));
        if !is_written && named(folder).last().is_none_or(|disk| *disk < newest) {
            return Some((ranks, memory, newest));
        }
        ranks.iter().for_each(|rank| signal(*rank, "CONT"));
        None
    })
}

fn children_of(run: &Running) -> Option<Vec<u32>> {
    Some(children(run.id())).filter(|all| !all.is_empty())
}

/// Kills the last of the stopped ranks; the others go on, and hear of it.
fn kill_last(ranks: &[u32]) {
    let (killed, others) = ranks.split_last().unwrap();
    signal(*killed, "KILL");
    for rank in others {
        let _ = Command::new("kill").args(["-CONT", &rank.to_string()]).stderr(Stdio::null()).status();
    }
    wait_until_gone(ranks);
}

/// The steps at which a run said that it continues from memory.
fn continued_from_memory(text: &str) -> Vec<usize> {
    let lines = text.lines().filter(|line| line.starts_with("continues /dev/shm/") && line.ends_with(", from memory"));
    lines.map(|line| line.split_once(" at step ").unwrap().1.split_once(',').unwrap().0.parse().unwrap()).collect()
}

#[test]
fn a_run_whose_rank_is_killed_goes_on_from_memory_and_ends_with_the_bits_of_one_that_was_not() {
    for (ranks, flags) in [(1, "--enable-cuda-graph"), (2, "--use-distributed-optimizer")] {
        let (folder, unbroken) = (Folder::new("states-kill"), Folder::new("states-unbroken"));
        let flags = format!("{ENDLESS} --save-interval 95 {flags}");
        let child = start_of(supervised(ranks, &folder.0, &[], &flags), &folder.0);
        wait_for("no checkpoint", || named(&folder.0).first().copied());
        let (killed, memory, _) = stopped_ahead(&child, &folder.0);
        kill_last(&killed);
        // A rank that went on may have completed a newer one.
        let state = states_in(&memory).pop().unwrap();
        wait_for("it does not go on", || (states_in(&memory).last()? > &(state + 10)).then_some(()));
        assert!(states_in(&memory).len() <= 2, "only the newest stays: {:?}", states_in(&memory));
        signal(child.id(), "TERM");
        let output = output_of(child);
        expect(&output, 75, &["starts it again in 1 s, after a new checkpoint", "asked to end: stops after step"]);
        let from = continued_from_memory(&printed(&output));
        assert!(from.len() == 1 && from[0] >= state && from[0].is_multiple_of(10), "{state}: {}", printed(&output));
        assert!(!memory.exists(), "the states go with the supervisor");
        let last = *saved(&folder.0).last().unwrap();
        expect(&run(ranks, &unbroken.0, &flags.replace("1000000", &last.to_string())), 0, &["has no effect"]);
        assert_same(&folder, &unbroken, &format!("{ranks} ranks"));
    }
}

/// A supervised run without checkpoints on disk, whose process is killed. `before` that the next start is kept from getting
/// further, and `end` ends it. Returns the output and the steps of the newest state.
fn given_up(
    folder: &Folder,
    max_restarts: &str,
    before: impl FnOnce(),
    end: impl FnOnce(&Running, u32),
) -> (Output, usize) {
    let words = ["--max-restarts", max_restarts];
    let flags = format!("{ENDLESS} --save-interval 0");
    let child = start_of(supervised(1, &folder.0, &words, &flags), &folder.0);
    let (ranks, _, state) = stopped_ahead(&child, &folder.0);
    before();
    kill_last(&ranks);
    end(&child, ranks[0]);
    let supervisor = child.id();
    let output = output_of(child);
    let left = states_of(supervisor);
    assert!(left.iter().all(|path| path.extension().is_some_and(|end| end == "kept")), "{left:?}");
    (output, state)
}

#[test]
fn the_last_state_is_on_disk_when_a_run_is_given_up_or_asked_to_end_in_a_pause() {
    let asked = |child: &Running, _: u32| signal(child.id(), "TERM");
    let killed_again = |child: &Running, before: u32| {
        let again = || children_of(child)?.into_iter().find(|process| *process != before);
        signal(wait_for("it is not started again", again), "KILL");
    };
    type End = fn(&Running, u32);
    let ends = [("0", 3, killed_again as End), ("3", 75, asked as End)];
    for (max_restarts, code, end) in ends {
        let (folder, unbroken) = (Folder::new("states-given-up"), Folder::new("states-given-up-unbroken"));
        let (output, state) = given_up(&folder, max_restarts, || std::fs::write(folder.path("stop"), "").unwrap(), end);
        let says = format!("supervise: the last state in memory is now {}", checkpoint(&folder.0, state).display());
        expect(&output, code, &[&says]);
        assert_eq!(saved(&folder.0), [state], "{}", printed(&output));
        let flags = format!("--steps {} --eval-interval 0", state + 3);
        let continues = format!("continues {} at step {state}, ", checkpoint(&folder.0, state).display());
        expect(&run(1, &folder.0, &flags), 0, &[&continues]);
        expect(&run(1, &unbroken.0, &flags), 0, &[]);
        assert_same(&folder, &unbroken, "unbroken");
    }
}

#[test]
fn a_state_that_cannot_be_copied_is_left_in_memory_and_named() {
    let folder = Folder::new("states-left");
    let saved = folder.path("saved");
    let (output, state) = given_up(
        &folder,
        "0",
        || {
            let _ = std::fs::remove_dir_all(&saved);
            std::fs::write(&saved, "no folder").unwrap();
        },
        |_, _| {},
    );
    expect(
        &output,
        3,
        &["WARNING: supervise: the last state in memory is not on disk: ", "remove it: rm -r /dev/shm/"],
    );
    let text = printed(&output);
    let left = text.split_once("rm -r ").unwrap().1.split_whitespace().next().unwrap();
    let manifest = verify(&Path::new(left).join(format!("step-{state:08}")), &Activity::default()).unwrap();
    std::fs::remove_dir_all(left).unwrap();
    assert_eq!(manifest.step, state);
}

#[test]
fn a_run_whose_folder_was_removed_starts_at_step_0_under_another_supervisor() {
    let folder = Folder::new("states-anew");
    let mut child = start_of(supervised(1, &folder.0, &[], &format!("{ENDLESS} --save-interval 0")), &folder.0);
    let (ranks, memory, _) = stopped_ahead(&child, &folder.0);
    child.kill().unwrap();
    child.wait().unwrap();
    kill_last(&ranks);
    std::fs::remove_dir_all(folder.path("saved")).unwrap_or_default();
    let flags = "--steps 4 --eval-interval 0 --memory-save-interval 1";
    let output = supervised(1, &folder.0, &[], flags).output().unwrap();
    expect(&output, 0, &["done: loss"]);
    assert!(!printed(&output).contains("continues"), "{}", printed(&output));
    assert!(!memory.exists(), "its supervisor is dead");
    assert_eq!(saved(&folder.0), [4]);
}

/// A run without a supervisor that keeps its states in `memory` of its folder.
fn with_memory(ranks: usize, folder: &Folder, flags: &str) -> Command {
    std::fs::create_dir_all(folder.path("memory")).unwrap();
    let mut run = command(ranks, &folder.0, flags);
    run.env(FOLDER, folder.path("memory")).stdout(Stdio::piped()).stderr(Stdio::piped());
    run
}

/// The log of rank 0.
fn log(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path("log/rank-0.jsonl")).unwrap()
}

/// Kills a rank of a run, or its only process, and waits for its end.
fn kill_a_rank(run: Running) -> Output {
    let rank = children(run.id()).pop().unwrap_or(run.id());
    signal(rank, "KILL");
    output_of(run)
}

#[test]
fn a_run_that_is_killed_while_a_state_is_written_goes_on_from_the_one_before() {
    for (ranks, flags, file) in
        [(1, "", "model.safetensors"), (2, "--use-distributed-optimizer", "model-00002-of-00002.safetensors")]
    {
        let flags =
            format!("--memory-save-interval 50 --save-interval 0 --eval-interval 0 --log-interval 1000 {flags}");
        // On a busy machine the state before may still be written when this one is due, or this one may end in time.
        let began = || {
            let folder = Folder::new("states-half");
            let mut run_slow = with_memory(ranks, &folder, &format!("--steps 1000000 {flags}"));
            let slow = folder.path("memory/step-00000100.tmp").join(file);
            break_file(&mut run_slow, &folder.0, &slow, &Fault::Slow(2));
            let child = start_of(run_slow, &folder.0);
            let is_skipped = || log(&folder).contains("no state in memory after step 150: a save is still under way");
            wait_for("no step is done", || (steps_done(&folder.0) > 151).then_some(()));
            if is_skipped() && states_in(&folder.path("memory")) == [50] {
                return Some((folder, child));
            }
            kill_a_rank(child);
            None
        };
        let (folder, child) = (0..20).find_map(|_| began()).expect("no step is done while a state is written");
        let whole = Folder::new("states-half-whole");
        assert!(!kill_a_rank(child).status.success());
        assert!(states_in(&folder.path("memory"))[0] <= 100);
        let from = states_in(&folder.path("memory")).pop().unwrap();
        let output = output_of(with_memory(ranks, &folder, &format!("--steps {} {flags}", from + 3)).spawn().unwrap());
        expect(&output, 0, &[&format!("at step {from}, sample {}, from memory", from * 8), "done: loss"]);
        expect(&run(ranks, &whole.0, &format!("--steps {} {flags}", from + 3)), 0, &[]);
        assert_same(&folder, &whole, "unbroken");
        assert_eq!(states_in(&folder.path("memory")), [0; 0], "the checkpoint on disk is newer");
        assert!(std::fs::read_dir(folder.path("memory")).unwrap().next().is_none(), "nothing half written stays");
    }
}

#[test]
fn a_state_that_a_rank_could_not_write_keeps_no_later_one_away() {
    for (ranks, flags, file) in
        [(1, "", "model.safetensors"), (2, "--use-distributed-optimizer", "model-00002-of-00002.safetensors")]
    {
        let folder = Folder::new("states-failed");
        let flags = format!(
            "--steps 1000 --memory-save-interval 50 --save-interval 0 --eval-interval 0 --log-interval 1000 {flags}"
        );
        let mut run = with_memory(ranks, &folder, &flags);
        break_file(&mut run, &folder.0, &folder.path("memory/step-00000050.tmp").join(file), &Fault::Fails(2));
        let output = output_of(run.spawn().unwrap());
        expect(&output, 0, &["WARNING: the state after step 50 is not in memory", "done: loss"]);
        let log = log(&folder);
        let states = log.matches("checkpoint after step ").count();
        assert!(states > 1, "there are later states, and the last checkpoint: {log}");
    }
}

/// A run that was killed with a state in memory that is newer than its newest checkpoint. Returns the steps of both.
fn killed_ahead(folder: &Folder) -> (usize, usize) {
    expect(&run(1, &folder.0, "--steps 2 --eval-interval 0"), 0, &[]);
    let flags = "--steps 1000000 --save-interval 0 --eval-interval 0 --memory-save-interval 10";
    let child = start_of(with_memory(1, folder, flags), &folder.0);
    wait_for("no state", || states_in(&folder.path("memory")).pop());
    signal(child.id(), "KILL");
    output_of(child);
    (2, states_in(&folder.path("memory")).pop().unwrap())
}

/// The output of the same run, for a few steps more.
fn goes_on(folder: &Folder, until: usize) -> Output {
    let flags = format!("--steps {until} --save-interval 0 --eval-interval 0 --memory-save-interval 100000");
    output_of(with_memory(1, folder, &flags).spawn().unwrap())
}

#[test]
fn a_state_that_is_damaged_is_skipped_and_so_is_one_of_another_run() {
    let folder = Folder::new("states-damaged");
    let (disk, state) = killed_ahead(&folder);
    let path = folder.path(&format!("memory/step-{state:08}/model.safetensors"));
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let notice = format!("notice: the state in memory after step {state} is damaged and skipped: model.safetensors");
    expect(&goes_on(&folder, disk + 1), 0, &[&notice, &format!("at step {disk}, "), "done: loss"]);

    let (folder, other) = (Folder::new("states-other"), Folder::new("states-other-run"));
    let (disk, state) = killed_ahead(&folder);
    expect(&run(1, &other.0, "--steps 2 --eval-interval 0"), 0, &[]);
    std::fs::remove_dir_all(checkpoint(&folder.0, disk)).unwrap();
    copy_folder(&checkpoint(&other.0, 2), &checkpoint(&folder.0, 2));
    let notice = format!("notice: the state in memory after step {state} is skipped: it is of another run than");
    expect(&goes_on(&folder, 3), 0, &[&notice, "at step 2, ", "done: loss"]);
}

#[test]
fn a_state_in_memory_is_used_if_all_checkpoints_are_damaged_or_gone() {
    for gone in [false, true] {
        let folder = Folder::new("states-only");
        let (disk, state) = killed_ahead(&folder);
        match gone {
            true => std::fs::remove_dir_all(checkpoint(&folder.0, disk)).unwrap(),
            false => std::fs::write(checkpoint(&folder.0, disk).join("model.safetensors"), "").unwrap(),
        }
        let from = format!("at step {state}, sample {}, from memory", state * 8);
        expect(&goes_on(&folder, state + 1), 0, &[&from, "done: loss"]);
    }
}

#[test]
fn no_checkpoint_is_read_where_a_state_in_memory_is_newer() {
    let folder = Folder::new("states-unread");
    let (disk, state) = killed_ahead(&folder);
    let path = checkpoint(&folder.0, disk).join("model.safetensors");
    let mut damaged = std::fs::read(&path).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let output = goes_on(&folder, state + 1);
    expect(&output, 0, &[&format!("at step {state}, "), "from memory", "done: loss"]);
    assert!(!printed(&output).contains("is damaged"), "it was read: {}", printed(&output));

    // One that cannot be read and is newer would be overwritten.
    let folder = Folder::new("states-unreadable");
    let (_, state) = killed_ahead(&folder);
    let later = checkpoint(&folder.0, state + 10);
    std::fs::create_dir_all(&later).unwrap();
    std::fs::write(later.join("manifest.json"), r#"{"format": 3}"#).unwrap();
    expect(&goes_on(&folder, state + 11), 3, &["is of format 3; this build reads formats 1 to 2"]);
}

#[test]
fn a_state_of_a_run_with_another_folder_is_not_taken() {
    let folder = Folder::new("states-elsewhere");
    killed_ahead(&folder);
    let flags = format!("--steps 3 --eval-interval 0 --memory-save-interval 10 --save {}", folder.path("b").display());
    let output = output_of(with_memory(1, &folder, &flags).spawn().unwrap());
    expect(&output, 0, &["is skipped: it is of another run", "done: loss"]);
    assert!(!printed(&output).contains("continues"), "{}", printed(&output));
}

#[test]
fn memory_without_room_is_a_warning_that_is_said_once() {
    // A state has 160 to 280 KiB: none fits, or one and not two.
    for (size, fits) in [("100k", false), ("300k", true)] {
        let folder = Folder::new("states-full");
        let memory = folder.path("memory");
        let run = with_memory(1, &folder, "--steps 80 --save-interval 0 --eval-interval 0 --memory-save-interval 2");
        let script = format!("\"$0\" \"$@\"; code=$?; df {} ; exit $code", memory.display());
        let Some(mut small) = on_small_disk(size, &memory, &script) else { return };
        small.arg(run.get_program()).args(run.get_args()).env(FOLDER, &memory);
        let output = small.output().unwrap();
        expect(&output, 0, &["WARNING: the state after step ", "is not in memory: it needs ", "done: loss"]);
        assert_eq!(printed(&output).matches("is not in memory").count(), 1, "{}", printed(&output));
        let log = log(&folder);
        assert!(log.matches("is not in memory").count() > 2, "the log has each: {log}");
        assert_eq!(log.contains("checkpoint after step 2: "), fits);
        assert_eq!(saved(&folder.0), [80]);
    }
}

#[test]
fn the_plan_and_notices_tell_of_states_in_memory() {
    let folder = Folder::new("states-told");
    let flags = "--steps 2 --eval-interval 0 --non-persistent-save-interval 7 --non-persistent-ckpt-type local";
    let row = "in shared memory every 7 steps; ";
    let output = run(1, &folder.0, &format!("{flags} --dry-run"));
    expect(
        &output,
        0,
        &[row, "of it: twice its part of the state", "--non-persistent-ckpt-type local: states in memory"],
    );
    let output = run(1, &folder.0, flags);
    expect(&output, 0, &["notice: checkpoint.memory_interval has no effect: only `trainer supervise`"]);
    assert!(!printed(&output).contains(row), "{}", printed(&output));
    let folder = Folder::new("states-told-supervised");
    expect(&supervised(1, &folder.0, &[], flags).output().unwrap(), 0, &[row, "done: loss"]);
    let refused = run(1, &folder.0, &flags.replace("local", "global"));
    expect(&refused, 2, &["--non-persistent-ckpt-type global", "Fix: give local, or --save-interval"]);
}
