//! The ranks that a launcher has started below this process, and conditions that keep ranks from ending.
//!
//! A launcher may outlive its ranks: mpirun has been seen to wait for ever in its own clean-up, and a stranger that
//! begins a message on its port holds it up. Ranks may outlive their launcher too. A run has ended when both have.
//! Ranks that are all stopped, or held up before they meet, have nobody else to notice: their own watch stands still or
//! has not begun.

use std::thread::sleep;
use std::time::{Duration, Instant};

use common::format::counted;
use rustix::process::{Pid, kill_process_group};

use crate::child::POLL;
use crate::processes::{PATIENCE, Process, descendants, end, is_of_this_program, is_zombie, ranks_below, running};
use crate::strangers::{Reach, stranger};
use crate::watch::WatchSettings;
use crate::watch::joining::THREAD as JOINING;

/// How long a launcher may go on after the last of the launcher's ranks. It takes a fraction of a second, and longer on a
/// busy machine.
const DESERTED: Duration = Duration::from_secs(10);
/// How long a stranger may hold up the start. A port scanner goes before that.
const HELD_UP: Duration = Duration::from_secs(30);
/// The interval at which ranks are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a launcher may take to start all ranks. Until then they are looked for all the time: those of a launcher that
/// is killed right after it has started them must be known.
const STARTING: Duration = Duration::from_secs(60);

/// The ranks below a launcher, as far as on this machine and below the launcher's process. Ranks are other processes of
/// this program.
pub(crate) struct RanksBelow {
    launcher: i32,
    /// Every rank seen so far.
    seen: Vec<Process>,
    limits: Option<Limits>,
    begun: Instant,
    looked: Instant,
    deserted: Lasting,
    stopped: Lasting,
    held_up: Lasting,
}

/// How long ranks may stand still.
struct Limits {
    stopped: Duration,
    held_up: Duration,
    reach: Reach,
}

/// How long something has lasted. Time does not count if this process was stopped itself in it: after a stop of the
/// whole run, its processes may go on in any order.
#[derive(Default)]
struct Lasting(Duration);

impl Lasting {
    /// Whether a condition that `holds` now has lasted for `limit`. `passed` is the time since the previous call.
    fn reaches(&mut self, limit: Duration, holds: bool, passed: Duration) -> bool {
        self.0 = if holds { self.0 + passed } else { Duration::ZERO };
        self.0 >= limit
    }
}

impl RanksBelow {
    /// The ranks of a launcher that has just begun. Without heartbeats they may stand still for ever.
    pub(crate) fn new(launcher: Pid, watch: &WatchSettings, reach: Reach) -> RanksBelow {
        let launcher = launcher.as_raw_nonzero().get();
        // The ranks give up themselves after the whole time for set-up, if they have begun.
        let held_up = HELD_UP.min(watch.setup_timeout / 2);
        let limits = (!watch.heartbeat.is_zero()).then_some(Limits { stopped: watch.timeout, held_up, reach });
        let [deserted, stopped, held_up] = [(); 3].map(|()| Lasting::default());
        let (begun, looked) = (Instant::now(), Instant::now());
        RanksBelow { launcher, seen: Vec::new(), limits, begun, looked, deserted, stopped, held_up }
    }

    /// Looks at the ranks. Returns why the run must be ended, if it must.
    pub(crate) fn trouble(&mut self) -> Option<String> {
        let is_due = self.looked.elapsed() >= LOOK;
        if !is_due && self.begun.elapsed() >= STARTING {
            return None;
        }
        let now = running(ranks_below(self.launcher));
        self.note(&now);
        if !is_due {
            return None;
        }
        let passed = self.looked.elapsed().min(2 * LOOK);
        self.looked = Instant::now();
        // Ranks that ended before they were seen have left entries in the process table: the launcher has not asked for
        // their status.
        let had_ranks = || !self.seen.is_empty() || descendants(self.launcher).into_iter().any(is_zombie);
        let deserted = now.is_empty() && had_ranks();
        if self.deserted.reaches(DESERTED, deserted, passed) {
            return Some("all ranks ended, and their launcher did not".into());
        }
        let limits = self.limits.as_ref()?;
        let holder = held_up_by(self.launcher, &now, limits.reach).filter(|_| !deserted);
        if self.held_up.reaches(limits.held_up, holder.is_some(), passed) {
            let seconds = limits.held_up.as_secs_f64();
            return holder.map(|holder| format!("the launcher was held up for {seconds} s by {holder}"));
        }
        // A single rank has no launcher.
        let single = is_of_this_program(self.launcher).then(|| Process::of(self.launcher)).flatten();
        let all: Vec<Process> = single.into_iter().chain(now).collect();
        let stopped = !all.is_empty() && all.iter().all(Process::is_stopped);
        if self.stopped.reaches(limits.stopped, stopped, passed) {
            let (ranks, seconds) = (counted(all.len(), "rank"), limits.stopped.as_secs_f64());
            return Some(format!(
                "every process of the run was stopped (SIGSTOP) for {seconds} s: {ranks} \
                 (parallel.distributed_timeout_seconds = {seconds})"
            ));
        }
        None
    }

    fn note(&mut self, ranks: &[Process]) {
        for rank in ranks {
            if !self.seen.contains(rank) {
                self.seen.push(*rank);
            }
        }
    }

    /// Ends the launcher and every process below. The caller waits for the launcher.
    pub(crate) fn end_launcher(&self) {
        let all: Vec<Process> = running(std::iter::once(self.launcher).chain(descendants(self.launcher)));
        end(&all, |signal| {
            if let Some(group) = Pid::from_raw(self.launcher) {
                let _ = kill_process_group(group, signal);
            }
        });
    }

    /// Ends the ranks that have outlived the launcher, so that the resources are free for the next start.
    pub(crate) fn end_ranks(&self) {
        let begun = Instant::now();
        while self.seen.iter().any(Process::runs) && begun.elapsed() < PATIENCE {
            sleep(POLL); // they end by themselves, when they miss each other or their launcher
        }
        end(&self.seen, |_| ());
    }
}

/// The stranger that holds up a launcher, in words. A launcher is held up if a stranger is connected to its port, and
/// it has started no rank, or all its ranks wait for each other.
fn held_up_by(launcher: i32, ranks: &[Process], reach: Reach) -> Option<String> {
    if !ranks.iter().all(|rank| rank.has_thread(JOINING)) {
        return None;
    }
    let all: Vec<i32> = std::iter::once(launcher).chain(descendants(launcher)).collect();
    let (_, launchers): (Vec<i32>, Vec<i32>) = all.iter().partition(|id| ranks.iter().any(|rank| rank.id == **id));
    stranger(&launchers, &all, reach)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn ranks_of(launcher: &Child) -> RanksBelow {
        RanksBelow::new(Pid::from_child(launcher), &WatchSettings::default(), Reach::ThisMachine)
    }

    #[test]
    fn ranks_that_have_just_begun_are_waited_for_when_their_launcher_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let rank = folder.path().join(std::env::current_exe().unwrap().file_name().unwrap());
        std::fs::copy("/bin/sleep", &rank).unwrap();
        let mut command = Command::new("sh");
        let mut launcher = command.args(["-c", "\"$0\" 2 & exec sleep 600"]).arg(&rank).spawn().unwrap();
        let mut ranks = ranks_of(&launcher);
        let of_launcher = || running(ranks_below(launcher.id() as i32));
        while of_launcher().is_empty() {
            sleep(POLL);
        }
        let rank = of_launcher()[0];
        assert_eq!(ranks.trouble(), None);
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        ranks.end_ranks();
        assert!(!rank.runs());
    }

    #[test]
    fn ranks_that_ended_before_they_were_seen_leave_a_deserted_launcher() {
        // The shell becomes `sleep`. That program never asks for the status of the shell's child.
        let mut launcher = Command::new("sh").args(["-c", "true & exec sleep 600"]).spawn().unwrap();
        let mut ranks = ranks_of(&launcher);
        let begun = Instant::now();
        while ranks.deserted.0.is_zero() && begun.elapsed() < Duration::from_secs(60) {
            sleep(POLL);
            assert_eq!(ranks.trouble(), None, "not before they have been gone for a while");
        }
        assert!(ranks.seen.is_empty() && !ranks.deserted.0.is_zero());
        launcher.kill().unwrap();
        launcher.wait().unwrap();
    }

    #[test]
    fn time_in_which_nobody_looked_or_the_ranks_went_on_does_not_count() {
        let (second, mut stopped) = (Duration::from_secs(1), Lasting::default());
        let mut reaches = |holds| stopped.reaches(3 * second, holds, second);
        assert_eq!([true, true, false, true, true, true].map(&mut reaches), [false, false, false, false, false, true]);
    }
}
