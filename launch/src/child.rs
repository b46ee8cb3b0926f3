//! A run as a child process: this process passes signals on to it and to the ranks below it.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// The interval at which the child and the signals are polled.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// A signal that comes again within this time is the same request: `timeout`, launchers and terminals send one to a process
/// and then to its group.
pub const ONE_REQUEST: Duration = Duration::from_secs(1);

/// How a child ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Whether this process was asked to end meanwhile.
    pub(crate) asked: bool,
}

/// The signals that ask a run to end, from now on received by this process.
pub(crate) fn listen() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGUSR1])
}

/// Runs a command to its end, and passes signals on meanwhile.
pub(crate) fn run_child(command: Command) -> io::Result<Ended> {
    run_child_with(command, &mut listen()?)
}

/// As [`run_child`], for a caller that listens to signals itself between runs.
///
/// The first signal asks the run to end, by SIGUSR1. The second one terminates the child's process group, and the third
/// one kills it.
pub(crate) fn run_child_with(mut command: Command, signals: &mut Signals) -> io::Result<Ended> {
    // The child has a process group of its own, so that a terminal's ^C does not end it before it has saved.
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
    let process = Pid::from_child(&child);
    let mut requests = 0;
    let mut last: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended { status, asked: requests > 0 });
        }
        for _ in signals.pending() {
            if last.is_some_and(|last| last.elapsed() < ONE_REQUEST) {
                continue;
            }
            last = Some(Instant::now());
            requests += 1;
            // Failure means that the child has just ended.
            let _ = match requests {
                1 => ask(process),
                2 => kill_process_group(process, Signal::TERM),
                _ => kill_process_group(process, Signal::KILL),
            };
        }
        sleep(POLL);
    }
}

/// Asks a run to end. One rank that knows is enough, and a rank takes two signals within [`ONE_REQUEST`] for one.
fn ask(process: Pid) -> rustix::io::Result<()> {
    let asked = kill_process(process, Signal::USR1);
    let id = process.as_raw_nonzero().get();
    let program = |id: i32| {
        let path = std::fs::read_link(PathBuf::from(format!("/proc/{id}/exe"))).ok()?;
        path.file_name().map(ToOwned::to_owned)
    };
    let own = program(std::process::id() as i32);
    // `trainer launch` passes the request on itself. Other programs may not: not every mpirun does.
    if own.is_none() || program(id) == own {
        return asked;
    }
    for rank in descendants(id).into_iter().filter(|&id| program(id) == own).filter_map(Pid::from_raw) {
        let _ = kill_process(rank, Signal::USR1);
    }
    asked
}

/// The children of a process, their children, and so on.
fn descendants(process: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    children.flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

/// Has the child get SIGTERM when the thread that starts it ends.
pub(crate) fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from));
    }
}

/// The exit code of a process, as a shell has it: 128 and the number of the signal that ended it.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(3)
}

/// The end of a process in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => status.to_string(),
    }
}
