//! The binary as users run it, on a small model with dropout, for the tests of checkpoints.
#![allow(dead_code)]

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use launch::watch::activity::Activity;
use serde_json::Value;

/// A model of few parameters. Dropout is on and validation falls between checkpoints, so that a resumed run that lost
/// its place in either would show. The learning rate does not depend on the number of steps.
const SMALL: &str = r#"
[model]
layers = 1
hidden = 32
heads = 2
seq_length = 16
hidden_dropout = 0.1
attention_dropout = 0.1
[train]
global_batch_size = 8
threads = 1
eval_interval = 3
eval_steps = 1
[optimizer]
schedule = "constant"
warmup_steps = 3
[logging]
dir = "FOLDER/log"
[checkpoint]
dir = "FOLDER/saved"
"#;

/// An empty folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The arguments of a run in `folder`: metrics in `log`, checkpoints in `saved`; `flags` override these.
pub fn arguments(folder: &Path, flags: &str) -> Vec<String> {
    let config = folder.join("small.toml");
    std::fs::write(&config, SMALL.replace("FOLDER", folder.to_str().unwrap())).unwrap();
    let config = ["--config", config.to_str().unwrap()].map(String::from);
    config.into_iter().chain(flags.split_whitespace().map(String::from)).collect()
}

/// How long a condition may take to come true. A run that hangs fails its test; a busy machine does not.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Waits until `condition` has a value.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The settings that MPI needs in tests: root has to allow itself twice, and MPI's files are in the test's own folder.
/// Ranks that wait leave their cores to other tests.
pub fn set_mpi(command: &mut Command, folder: &Path) {
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("TMPDIR", mpi_folder(folder));
}

/// The folder for MPI's files in a test's folder.
pub fn mpi_folder(folder: &Path) -> PathBuf {
    let mpi = folder.join("mpi");
    std::fs::create_dir_all(&mpi).unwrap();
    mpi
}

/// `mpirun` for ranks that share the cores with those of other tests, without the ranks and the program.
pub fn mpirun_command(folder: &Path) -> Command {
    let mut command = Command::new("mpirun");
    set_mpi(&mut command, folder);
    command.args(["--oversubscribe", "--bind-to", "none", "--timeout", &LIMIT.as_secs().to_string()]);
    command
}

/// The trainer on `ranks` ranks, not yet started; one rank runs without mpirun.
pub fn command(ranks: usize, folder: &Path, flags: &str) -> Command {
    let trainer = env!("CARGO_BIN_EXE_trainer");
    let mut command = if ranks == 1 { Command::new(trainer) } else { mpirun_command(folder) };
    if ranks > 1 {
        command.args(["-n", &ranks.to_string(), trainer]);
    }
    command.args(arguments(folder, flags));
    command
}

pub fn run(ranks: usize, folder: &Path, flags: &str) -> Output {
    command(ranks, folder, flags).output().unwrap()
}

/// Runs `trainer ARGUMENTS` in `folder` on ranks of mpirun; one rank runs without mpirun, which takes a second to start.
pub fn mpirun(ranks: usize, folder: &Path, arguments: &[&str]) -> Output {
    let trainer = env!("CARGO_BIN_EXE_trainer");
    let mut command = if ranks == 1 { Command::new(trainer) } else { mpirun_command(folder) };
    if ranks > 1 {
        command.args(["-n", &ranks.to_string(), trainer]);
    }
    let output = command.args(arguments).current_dir(folder).output();
    output.unwrap_or_else(|error| panic!("mpirun does not start ({error}); `./x test` installs what the tests need"))
}

/// Runs `trainer LINE` in a folder.
pub fn trainer(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.args(line.split_whitespace()).current_dir(folder).output().unwrap()
}

/// The whole output.
pub fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The text with each value of a plan's box on one line.
fn unwrapped(text: &str) -> String {
    let mut flat = String::new();
    for line in text.lines() {
        match line.strip_prefix("│   ") {
            Some(rest) => {
                let before = flat.trim_end_matches(['\n', '│', ' ']).len();
                flat.truncate(before);
                flat += " ";
                flat += rest.trim_start();
            }
            None => flat += line,
        }
        flat += "\n";
    }
    flat
}

/// The cases of a file in `refused`: each has a line, and below it indented lines, in which `\n` is the end of one. `#`
/// begins a comment.
pub fn cases(name: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let file = format!("{}/tests/app/refused/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text: &str = std::fs::read_to_string(file).unwrap().leak();
    let mut cases: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("    "), cases.last_mut()) {
            (Some(part), Some((_, parts))) => parts.push(part.replace("\\n", "\n").leak()),
            _ => cases.push((line, Vec::new())),
        }
    }
    assert!(!cases.is_empty() && cases.iter().all(|(_, parts)| !parts.is_empty()), "a case says what is told");
    cases
}

/// Fails unless the run ends with that code and prints all of `parts`, whether a plan's box wraps them or not.
pub fn expect(output: &Output, code: i32, parts: &[&str]) {
    let text = printed(output);
    let flat = unwrapped(&text);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part) || flat.contains(part), "{part:?} is not in {text}");
    }
}

/// Starts a run that would go on forever, and returns when it has done some steps.
pub fn start(ranks: usize, folder: &Path, flags: &str) -> Running {
    start_of(command(ranks, folder, &format!("--steps 1000000 {flags}")), folder)
}

/// As [`start`], of any command that runs in `folder`.
pub fn start_of(mut command: Command, folder: &Path) -> Running {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("no step was done", || (steps_done(folder) >= 3).then_some(()));
    child.into()
}

/// The number of steps in a run's metrics.
pub fn steps_done(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("log/metrics.jsonl")).unwrap_or_default().lines().count()
}

/// A process with output that is read as it comes: a full pipe would hold up mpirun, and with it the run.
pub struct Running {
    child: Child,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

impl From<Child> for Running {
    fn from(mut child: Child) -> Running {
        let (stdout, stderr) = (read_along(child.stdout.take()), read_along(child.stderr.take()));
        Running { child, stdout, stderr }
    }
}

/// Receives everything that is read, at its end.
fn read_along(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (end, wait) = channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut all).unwrap();
        }
        end.send(all)
    });
    wait
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

/// Waits for the end of a run.
pub fn output_of(run: impl Into<Running>) -> Output {
    let mut run = run.into();
    let status = wait_for("the run goes on", || run.child.try_wait().unwrap());
    let read = |pipe: Receiver<Vec<u8>>| pipe.recv_timeout(LIMIT).expect("a process keeps the output open");
    Output { status, stdout: read(run.stdout), stderr: read(run.stderr) }
}

/// Process numbers of the trainers below a process that started no others: its ranks.
pub fn ranks_below(process: u32) -> Vec<u32> {
    let trainer = Path::new(env!("CARGO_BIN_EXE_trainer")).canonicalize().unwrap();
    let all = children(process);
    let is_trainer = |id: &u32| std::fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|exe| exe == trainer);
    let deeper: Vec<u32> = all.iter().flat_map(|id| ranks_below(*id)).collect();
    if deeper.is_empty() { all.into_iter().filter(is_trainer).collect() } else { deeper }
}

/// Process numbers of the children of a process.
pub fn children(process: u32) -> Vec<u32> {
    let ids = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    ids.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Waits until no process of these is left.
pub fn wait_until_gone(processes: &[u32]) {
    let left = |process: &u32| {
        // A process that has ended may wait for its parent to take notice.
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    wait_for("a process is left", || (!processes.iter().any(left)).then_some(()));
}

/// Process numbers of mpirun's ranks.
pub fn rank_ids(mpirun: &Child) -> Vec<u32> {
    children(mpirun.id())
}

/// Sends a signal, by its name without SIG.
pub fn signal(process: u32, name: &str) {
    signals(process, &[name]);
}

/// Sends several signals at once: one shell does, so that little time passes between them.
pub fn signals(process: u32, names: &[&str]) {
    let kills: Vec<String> = names.iter().map(|name| format!("kill -{name} {process}")).collect();
    let status = Command::new("bash").args(["-c", &kills.join(" && ")]).status().unwrap();
    assert!(status.success(), "{kills:?}");
}

/// The steps in the metrics of a log folder.
pub fn logged_steps(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The numbers of each step that do not depend on the clock; fails unless the steps are 1, 2, 3, ... in the file.
pub fn metrics(folder: &Path) -> Vec<Value> {
    let numbers = |(index, step): (usize, Value)| {
        assert_eq!(step["step"], index + 1, "each step appears once, in order");
        // All are shortest decimals of their bits: equal ones mean equal bits.
        ["loss", "grad_norm", "lr", "validation_loss"].iter().map(|key| step[*key].clone()).collect()
    };
    logged_steps(&folder.join("log")).into_iter().enumerate().map(numbers).collect()
}

/// Fails unless the losses and validation losses of so many steps are the same up to the order of sums.
pub fn assert_like(steps: usize, theirs: &[Value], ours: &[Value], what: &str) {
    assert_eq!((theirs.len(), ours.len()), (steps, steps), "{what}");
    for step in 0..steps {
        for number in [0, 3] {
            let value = |lines: &[Value]| lines[step][number].as_f64();
            let (theirs, ours) = (value(theirs), value(ours));
            let same = theirs.zip(ours).is_none_or(|(theirs, ours)| (ours / theirs - 1.0).abs() < 1e-5);
            assert!(same && theirs.is_some() == ours.is_some(), "{what}, step {step}: {theirs:?} and {ours:?}");
        }
    }
}

/// Step numbers of the checkpoints in `folder/saved`; fails if one is unfinished.
pub fn saved(folder: &Path) -> Vec<usize> {
    let names = names(folder);
    assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
    named(folder)
}

/// As [`saved`], but without unfinished checkpoints: they have other names.
pub fn named(folder: &Path) -> Vec<usize> {
    let steps = names(folder).into_iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok());
    let mut steps: Vec<usize> = steps.collect();
    steps.sort();
    steps
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("saved")).map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    entries.into_iter().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The folder of the checkpoint after `step` steps.
pub fn checkpoint(folder: &Path, step: usize) -> PathBuf {
    folder.join(format!("saved/step-{step:08}"))
}

/// Hashes of weights and moments after `step` steps; every byte is checked.
pub fn bits(folder: &Path, step: usize) -> Vec<String> {
    let manifest = trainer::checkpoint::verify(&checkpoint(folder, step), &Activity::default()).unwrap();
    let tensors = manifest.files.into_iter().filter(|file| file.name.ends_with(".safetensors"));
    tensors.map(|file| format!("{} {:?}", file.name, file.hash)).collect()
}

/// Makes a folder as a run that died after the checkpoint of `step` left it: its checkpoint, and metrics up to the end.
pub fn copy_run(from: &Path, to: &Path, step: usize) {
    std::fs::create_dir_all(to.join("log")).unwrap();
    std::fs::copy(from.join("log/metrics.jsonl"), to.join("log/metrics.jsonl")).unwrap();
    copy_folder(&checkpoint(from, step), &checkpoint(to, step));
}

/// A run in a folder of its own goes on from the checkpoint after `step` steps of another, to its end.
pub fn resume_at(from: &Folder, step: usize, ranks: usize, flags: &str) -> Folder {
    let folder = Folder::new("resumed");
    copy_run(&from.0, &folder.0, step);
    expect(&run(ranks, &folder.0, flags), 0, &[&format!("at step {step}, sample "), "done: loss"]);
    folder
}

/// Fails unless two runs have the same bits in their metrics, and in their weights and moments after the last step.
pub fn assert_same(ours: &Folder, theirs: &Folder, what: &str) {
    let steps = metrics(&ours.0);
    assert_eq!(steps, metrics(&theirs.0), "{what}");
    assert_eq!(bits(&ours.0, steps.len()), bits(&theirs.0, steps.len()), "{what}");
}

/// The loss of each step.
pub fn losses(folder: &Folder) -> Vec<f64> {
    metrics(&folder.0).iter().map(|step| step[0].as_f64().unwrap()).collect()
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The trainer's standard output with these arguments. It must succeed.
pub fn stdout_of(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
