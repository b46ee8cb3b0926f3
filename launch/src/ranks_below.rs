//! The ranks that a launcher has started below this process.
//!
//! A launcher may outlive its ranks: mpirun has been seen to wait for ever in its own clean-up, and a stranger who begins a
//! message on its port holds it up. Ranks may outlive their launcher too. A run has ended when both have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::child::POLL;

/// How long a launcher may go on after the last of its ranks. It takes a fraction of a second, and longer on a busy machine.
const DESERTED: Duration = Duration::from_secs(10);
/// The interval at which ranks are looked for, once the launcher has started them.
const LOOK: Duration = Duration::from_secs(1);
/// How long a launcher may take to start its ranks. Until then they are looked for all the time: those of a launcher that is
/// killed right after it has started them must be known.
const STARTING: Duration = Duration::from_secs(60);
/// How long processes may take to end, before they are killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ranks below a launcher, as far as they are on this machine and below its process. Ranks are other processes of this
/// program.
pub(crate) struct RanksBelow {
    launcher: i32,
    /// Every rank seen so far.
    seen: Vec<Process>,
    begun: Instant,
    looked: Instant,
    /// Since when no rank is left.
    deserted: Option<Instant>,
}

/// A process. Its number alone may be used again.
#[derive(Clone, Copy, PartialEq)]
struct Process {
    id: i32,
    /// The time of its start, in clock ticks since boot.
    started: u64,
}

impl RanksBelow {
    pub(crate) fn new(launcher: Pid) -> RanksBelow {
        let launcher = launcher.as_raw_nonzero().get();
        RanksBelow { launcher, seen: Vec::new(), begun: Instant::now(), looked: Instant::now(), deserted: None }
    }

    /// Looks for ranks, after the start once a second. Whether there were some, and none for ten seconds.
    pub(crate) fn are_gone(&mut self) -> bool {
        if self.begun.elapsed() < STARTING || self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let now = running(ranks_below(self.launcher));
            // Ranks that ended before they were seen have left their entries, for which the launcher has not asked.
            let had_ranks = || !self.seen.is_empty() || descendants(self.launcher).into_iter().any(is_zombie);
            if !now.is_empty() || !had_ranks() {
                self.deserted = None;
            } else {
                self.deserted.get_or_insert_with(Instant::now);
            }
            self.note(now);
        }
        self.deserted.is_some_and(|since| since.elapsed() >= DESERTED)
    }

    fn note(&mut self, ranks: Vec<Process>) {
        for rank in ranks {
            if !self.seen.contains(&rank) {
                self.seen.push(rank);
            }
        }
    }

    /// Ends the launcher and everything below it. The caller waits for the launcher.
    pub(crate) fn end_launcher(&self) {
        let all: Vec<Process> =
            std::iter::once(self.launcher).chain(descendants(self.launcher)).filter_map(Process::of).collect();
        end(&all, |signal| {
            if let Some(group) = Pid::from_raw(self.launcher) {
                let _ = kill_process_group(group, signal);
            }
        });
    }

    /// Ends the ranks that have outlived their launcher, so that they do not hold what the next start needs.
    pub(crate) fn end_ranks(&self) {
        let begun = Instant::now();
        while self.seen.iter().any(Process::runs) && begun.elapsed() < PATIENCE {
            sleep(POLL); // they end by themselves, when they miss each other or their launcher
        }
        end(&self.seen, |_| ());
    }
}

/// Those that have not ended.
fn running(processes: Vec<i32>) -> Vec<Process> {
    processes.into_iter().filter_map(Process::of).collect()
}

/// Terminates processes, and kills those that are left after some time.
fn end(processes: &[Process], also: impl Fn(Signal)) {
    for signal in [Signal::TERM, Signal::KILL] {
        if !processes.iter().any(Process::runs) {
            return;
        }
        also(signal);
        for process in processes.iter().filter(|process| process.runs()) {
            if let Some(id) = Pid::from_raw(process.id) {
                let _ = kill_process(id, signal);
            }
        }
        let begun = Instant::now();
        while processes.iter().any(Process::runs) && begun.elapsed() < PATIENCE {
            sleep(POLL);
        }
    }
}

/// The state of a process as one letter, and the time of its start. `None` if it is gone.
fn stat(id: i32) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.into(), fields.nth(18)?.parse().ok()?))
}

/// Whether a process has ended and its parent has not asked for its status.
fn is_zombie(id: i32) -> bool {
    stat(id).is_some_and(|(state, _)| state == "Z")
}

impl Process {
    /// `None` if it has ended.
    fn of(id: i32) -> Option<Process> {
        let (state, started) = stat(id)?;
        (state != "Z" && state != "X").then_some(Process { id, started })
    }

    fn runs(&self) -> bool {
        Process::of(self.id) == Some(*self)
    }
}

/// The processes of this program below a process.
pub(crate) fn ranks_below(process: i32) -> Vec<i32> {
    let own = program(std::process::id() as i32);
    if own.is_none() {
        return Vec::new();
    }
    descendants(process).into_iter().filter(|&id| program(id) == own).collect()
}

/// The name of a process's program. `None` if it has ended.
pub(crate) fn program(process: i32) -> Option<OsString> {
    let path = std::fs::read_link(PathBuf::from(format!("/proc/{process}/exe"))).ok()?;
    path.file_name().map(ToOwned::to_owned)
}

/// The children of a process, their children, and so on.
fn descendants(process: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    children.flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_has_ended_does_not_run_though_nobody_has_taken_notice() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        assert!(process.runs());
        assert!(!Process { started: process.started + 1, ..process }.runs(), "the number was used again");
        end(&[process], |_| ());
        assert!(!process.runs());
        child.wait().unwrap();
    }

    #[test]
    fn ranks_that_have_just_begun_are_waited_for_when_their_launcher_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let rank = folder.path().join(program(std::process::id() as i32).unwrap());
        std::fs::copy("/bin/sleep", &rank).unwrap();
        let mut command = Command::new("sh");
        let mut launcher = command.args(["-c", "\"$0\" 2 & exec sleep 600"]).arg(&rank).spawn().unwrap();
        let mut ranks = RanksBelow::new(Pid::from_child(&launcher));
        let of_launcher = || running(ranks_below(launcher.id() as i32));
        while of_launcher().is_empty() {
            sleep(POLL);
        }
        let rank = of_launcher()[0];
        assert!(!ranks.are_gone());
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        ranks.end_ranks();
        assert!(!rank.runs());
    }

    #[test]
    fn ranks_that_ended_before_they_were_seen_leave_a_deserted_launcher() {
        // The shell becomes `sleep`, which never asks for the status of the shell's child.
        let mut launcher = Command::new("sh").args(["-c", "true & exec sleep 600"]).spawn().unwrap();
        let mut ranks = RanksBelow::new(Pid::from_child(&launcher));
        let begun = Instant::now();
        while ranks.deserted.is_none() && begun.elapsed() < Duration::from_secs(60) {
            sleep(POLL);
            assert!(!ranks.are_gone(), "not before they have been gone for a while");
        }
        assert!(ranks.seen.is_empty() && ranks.deserted.is_some());
        launcher.kill().unwrap();
        launcher.wait().unwrap();
    }
}
