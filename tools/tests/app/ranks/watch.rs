//! A fault of one rank ends all of them soon, with one line that names its root cause.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::checkpoints::disk_shim::{Fault, break_file};
use crate::harness::{
    Folder, Running, command, expect, output_of, printed, rank_ids, run, signal, start, wait_for, wait_until_gone,
};

/// Short for a test, and long for a rank that works on a busy machine.
const IMPATIENT: &str = "--distributed-timeout-seconds 6";
/// Many heartbeats a second.
const OFTEN: &str = "--heartbeat-seconds 0.1";

/// Waits until heartbeats have told the place of each rank, and the monitor has read them.
fn heartbeats_pass(ids: &[u32]) {
    let of: Vec<PathBuf> = ids.iter().map(|id| thread(*id, "heartbeat")).chain([thread(ids[0], "monitor")]).collect();
    let before: Vec<u64> = of.iter().map(|thread| pauses(thread)).collect();
    // A heartbeat's thread pauses at most twice, and for 100 ms at most, between looks at the clock.
    wait_for("no heartbeats", || {
        of.iter().zip(&before).all(|(thread, before)| pauses(thread) >= before + 30).then_some(())
    });
}

/// Tries all cases at once. Most of their time they wait for a limit.
fn at_once<C: Sync>(cases: &[C], test: impl Fn(&C) + Sync) {
    std::thread::scope(|scope| cases.iter().for_each(|case| drop(scope.spawn(|| test(case)))));
}

/// The folder in `/proc` of a process's thread.
fn thread(process: u32, name: &str) -> PathBuf {
    let all = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|thread| thread.unwrap().path());
    let is = |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).is_ok_and(|text| text.trim() == name);
    all.into_iter().find(is).unwrap_or_else(|| panic!("no thread {name}"))
}

/// How often a thread has waited so far.
fn pauses(thread: &Path) -> u64 {
    let status = std::fs::read_to_string(thread.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// Waits for a run to end of itself, with all its processes.
fn ended(run: impl Into<Running>, ranks: &[u32]) -> Output {
    let output = output_of(run);
    wait_until_gone(ranks);
    output
}

/// The one line that names a root cause; fails unless there is one, and it and the exit code are as expected.
fn root_cause(output: &Output, codes: &[i32], parts: &[&str]) -> String {
    let text = printed(output);
    assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{:?}: {text}", output.status);
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("error on rank") || line.contains("error: ")).collect();
    let [line] = lines[..] else { panic!("{} root causes: {text}", lines.len()) };
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    line.into()
}

/// Fails unless a line names host, step, region and collective.
fn assert_places(line: &str) {
    for part in ["[host ", " step ", "last collective all_reduce on data, number "] {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    let regions = ["forward of layer ", "backward of layer ", "optimizer", "inputs", "begin", "reduce"];
    assert!(
        line.split(", ").any(|part| regions.iter().any(|region| part.starts_with(region))),
        "no region in {line:?}"
    );
}

#[test]
fn each_rank_that_is_killed_ends_all_with_its_last_region_and_collective() {
    // Rank 0 has a test of its own.
    for (ranks, killed, flags) in [
        (2, 1, "--enable-cuda-graph"),
        (4, 1, ""),
        (4, 2, "--enable-cuda-graph"),
        (4, 3, "--enable-cuda-graph --cuda-graph-scope full_iteration"),
    ] {
        let folder = Folder::new("watch-kill");
        let child = start(ranks, &folder.0, &format!("{flags} {OFTEN}"));
        let ids = rank_ids(&child);
        heartbeats_pass(&ids);
        signal(ids[killed], "KILL");
        // mpirun's code says the signal.
        let line = root_cause(&ended(child, &ids), &[137, 4], &[]);
        assert_places(&line);
        assert!(line.starts_with(&format!("error on rank {killed}: the process died without a word")), "{line}");
        let log = std::fs::read_to_string(folder.path("log/run.log")).unwrap();
        assert!(log.contains(&line), "{line:?} is not in run.log: {log}");
    }
}

#[test]
fn each_rank_that_is_stopped_ends_all_once_it_is_not_heard_of() {
    at_once(&[1, 2, 3], |&stopped| {
        let folder = Folder::new("watch-stop");
        let child = start(4, &folder.0, &format!("--enable-cuda-graph {IMPATIENT} {OFTEN}"));
        let ids = rank_ids(&child);
        heartbeats_pass(&ids);
        signal(ids[stopped], "STOP");
        let output = ended(child, &ids);
        let line = root_cause(&output, &[4], &[]);
        assert_places(&line);
        let threads = format!("threads of rank {stopped}, process {}: main stopped", ids[stopped]);
        assert!(printed(&output).contains(&threads), "{threads:?} is not in {}", printed(&output));
        assert!(line.starts_with(&format!("error on rank {stopped}: not heard of for ")), "{line}");
    });
}

#[test]
fn a_rank_whose_log_cannot_be_written_on_hangs_and_is_named_though_all_hearts_beat() {
    let cases = [
        (2, 1, "; rank 0 waits for it", "--enable-cuda-graph"),
        (4, 3, "", "--tensor-model-parallel-size 2 --enable-cuda-graph --cuda-graph-scope full_iteration"),
        (4, 2, "", "--pipeline-model-parallel-size 4 --layers 4 --enable-cuda-graph"),
    ];
    at_once(&cases, |&(ranks, hangs, waits, layout)| {
        let folder = Folder::new("watch-hang");
        std::fs::create_dir_all(folder.path("log")).unwrap();
        let flags = format!("--steps 1000000 --log debug {layout} {IMPATIENT}");
        let mut command = command(ranks, &folder.0, &flags);
        // The lines of the first steps can be written.
        let log = folder.path("log").join(format!("rank-{hangs}.jsonl"));
        break_file(&mut command, &folder.0, &log, &Fault::Hangs(100));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let output = ended(child, &[]);
        let line = root_cause(&output, &[3, 4], &[waits, "distributed_timeout_seconds = 6"]);
        let (text, begin) = (printed(&output), format!("threads of rank {hangs}, process "));
        let threads = text.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("{begin}: {text}"));
        assert!(["main in ", "heartbeat ", "signals in "].iter().all(|name| threads.contains(name)), "{threads}");
        assert!(line.starts_with(&format!("error on rank {hangs}: no progress for ")), "{layout}: {line}");
        for part in ["[host ", " step ", "last collective "] {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
    });
}

#[test]
fn without_rank_0_the_others_end_by_themselves() {
    at_once(&[("KILL", "died without a word"), ("STOP", "was not heard of for ")], |&(kind, what)| {
        let folder = Folder::new("watch-rank-0");
        let child = start(2, &folder.0, IMPATIENT);
        let ids = rank_ids(&child);
        signal(ids[0], kind);
        let output = ended(child, &ids);
        assert!(matches!(output.status.code(), Some(4 | 137)), "{kind}: {}", printed(&output));
        expect(&output, output.status.code().unwrap(), &["rank 1 ends because rank 0, which runs the monitor, ", what]);
        // mpirun lets a stopped rank go on, so that it can end: its monitor must not blame those that ended for it.
        assert!(!printed(&output).contains("error on rank 1"), "{}", printed(&output));
    });
}

#[test]
fn a_rank_that_hangs_before_it_has_joined_ends_all_after_the_limit_for_set_up() {
    let folder = Folder::new("watch-joining");
    std::fs::create_dir_all(folder.path("log")).unwrap();
    let flags = format!("--steps 5 --setup-timeout-seconds 6 {IMPATIENT}");
    let mut command = command(4, &folder.0, &flags);
    // Rank 1 waits for ever when it opens its log, before MPI's start. The others wait for it in that start.
    break_file(&mut command, &folder.0, &folder.path("log/rank-1.jsonl"), &Fault::Hangs(1));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let parts = ["not all joined within 6 s", "parallel.setup_timeout_seconds = 6"];
    let line = root_cause(&ended(child, &[]), &[3], &parts);
    assert!(line.starts_with("error on rank 0: "), "{line}");
}

#[test]
fn writing_that_takes_longer_than_a_step_may_is_no_fault() {
    let folder = Folder::new("watch-slow-disk");
    std::fs::create_dir_all(folder.path("log")).unwrap();
    let flags = format!("--steps 8 --trace {} {IMPATIENT}", folder.path("log/trace.json").display());
    let mut command = command(2, &folder.0, &flags);
    // Each rank writes a timeline. That of rank 1 is opened twice, to see that it can be written and to write it.
    let timeline = folder.path("log/trace-rank1.json");
    break_file(&mut command, &folder.0, &timeline, &Fault::Slow(3));
    expect(&command.output().unwrap(), 0, &["done: loss"]);
    let read = std::fs::read_to_string(&timeline).unwrap();
    assert!(read.contains("rank 1"), "{read}");
}

#[test]
fn an_error_of_one_rank_is_the_root_cause_and_its_code_the_one_that_is_seen() {
    let folder = Folder::new("watch-error");
    std::fs::create_dir_all(folder.path("log")).unwrap();
    // Each rank writes its own timeline; that it could not is an error when the run ends.
    let flags = format!("--steps 8 --trace {}", folder.path("log/trace.json").display());
    let mut command = command(2, &folder.0, &flags);
    break_file(&mut command, &folder.0, &folder.path("log/trace-rank1.json"), &Fault::Full);
    let output = command.output().unwrap();
    let line = root_cause(&output, &[3], &["trace-rank1.json", "No space left", "Fix: ", "[host ", " step 8"]);
    assert!(line.starts_with("error on rank 1: the timeline"), "{line}");
}

#[test]
fn data_that_are_cut_off_under_all_ranks_are_one_root_cause() {
    let folder = Folder::new("watch-data");
    let data = folder.path("data.bin");
    std::fs::write(&data, [7, 0, 9, 0].repeat(400_000)).unwrap();
    let child = start(4, &folder.0, &format!("--raw-tokens u16 --data-path {}", data.display()));
    let ids = rank_ids(&child);
    std::fs::File::options().write(true).open(&data).unwrap().set_len(100).unwrap();
    let line = root_cause(&ended(child, &ids), &[3], &["data.bin", "[host ", " step "]);
    assert!(line.starts_with("error on rank "), "{line}");
}

#[test]
fn a_rank_that_alone_cannot_begin_says_why_and_no_other_does() {
    let folder = Folder::new("watch-begin");
    std::fs::create_dir_all(folder.path("log/rank-2.jsonl")).unwrap();
    let output = run(4, &folder.0, "--steps 5");
    let line = root_cause(&output, &[2], &["logging.dir = ", "rank-2.jsonl cannot be written", ". Rule: ", ". Fix: "]);
    assert!(line.starts_with("error: "), "{line}");
    assert!(!folder.path("log/metrics.jsonl").exists(), "training began");
}

#[test]
fn a_monitor_address_of_another_machine_is_refused_once_with_a_fix() {
    let folder = Folder::new("watch-address");
    let output = run(2, &folder.0, "--steps 5 --monitor-address 192.0.2.1");
    root_cause(&output, &[2], &["cannot listen on 192.0.2.1:0", "Fix: set parallel.monitor_address"]);
    expect(&run(2, &folder.0, "--steps 5 --monitor-address 127.0.0.1"), 0, &["done: loss"]);
}

#[test]
fn ranks_without_a_watch_train_too() {
    let folder = Folder::new("watch-off");
    expect(&run(2, &folder.0, "--steps 5 --heartbeat-seconds 0 --enable-cuda-graph"), 0, &["done: loss"]);
    let alone = Folder::new("watch-alone");
    let child = start(1, &alone.0, "");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let names: Vec<_> = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap()).collect();
    signal(child.id(), "KILL");
    output_of(child);
    assert!(!names.iter().any(|name| name.contains("heartbeat") || name.contains("monitor")), "{names:?}");
}
