//! A run as a child process: this process passes signals on to it and to the ranks below it.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::processes::{is_of_this_program, ranks_below, running};
use crate::ranks_below::RanksBelow;
use crate::strangers::Reach;
use crate::watch::WatchSettings;

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
    /// Why this process had to end the child, if so: it would have gone on for ever.
    pub(crate) trouble: Option<String>,
}

/// The signals that ask a run to end, from now on received by this process.
pub(crate) fn listen() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGUSR1])
}

/// Runs a command to the end, and passes `signals` on meanwhile.
///
/// The first signal asks the run to end, by SIGUSR1. The second one terminates the child's process group, and the third
/// one kills it. Processes that are stopped go on to take the first two. If this process dies, the child is terminated.
/// When this returns, no rank that was seen below the child is left on this machine.
///
/// The run is ended if its launcher outlives its ranks. It is also ended, unless `watch` has no heartbeats, if all its
/// processes are stopped for longer than a rank may be silent, or if a stranger holds up its start. `reach` tells the
/// connections of strangers from others.
pub(crate) fn run_child(
    mut command: Command,
    signals: &mut Signals,
    watch: &WatchSettings,
    reach: Reach,
) -> io::Result<Ended> {
    end_with_parent(&mut command);
    // The child has a process group of its own, so that a terminal's ^C does not end it before it has saved.
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
    let process = Pid::from_child(&child);
    let mut ranks = RanksBelow::new(process, watch, reach);
    let mut requests = 0;
    let mut last: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            ranks.end_ranks();
            return Ok(Ended { status, asked: requests > 0, trouble: None });
        }
        if let trouble @ Some(_) = ranks.trouble() {
            ranks.end_launcher();
            return Ok(Ended { status: child.wait()?, asked: requests > 0, trouble });
        }
        for _ in signals.pending() {
            if last.is_some_and(|last| last.elapsed() < ONE_REQUEST) {
                continue;
            }
            last = Some(Instant::now());
            requests += 1;
            match requests {
                1 => ask(process),
                2 => signal_group(process, &[Signal::TERM, Signal::CONT]),
                _ => signal_group(process, &[Signal::KILL]),
            }
        }
        sleep(POLL);
    }
}

/// Asks a run to end. One rank that knows is enough, and a rank takes a second SIGUSR1 for the same request. Ranks that are
/// stopped go on, so that they can save.
fn ask(process: Pid) {
    let id = process.as_raw_nonzero().get();
    // `trainer launch` passes the request on itself. Other programs may not: not every mpirun does.
    let ranks = if is_of_this_program(id) { Vec::new() } else { ranks_below(id) };
    running(std::iter::once(id).chain(ranks)).iter().for_each(|process| process.signal(Signal::USR1));
}

fn signal_group(group: Pid, signals: &[Signal]) {
    for signal in signals {
        let _ = kill_process_group(group, *signal); // it may just have ended
    }
}

/// Has the child get SIGTERM when the thread that starts the child ends.
fn end_with_parent(command: &mut Command) {
    let parent = std::process::id() as i32;
    // SAFETY: between fork and exec the closure makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            match getppid() {
                // A parent outside of this process's view has no number.
                Some(now) if now.as_raw_nonzero().get() != parent => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                _ => Ok(()),
            }
        });
    }
}

/// The exit code of a process, as in a shell: 128 and the number of the signal that ended it.
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
