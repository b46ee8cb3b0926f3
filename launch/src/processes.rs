//! Processes of this machine, from `/proc`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::child::POLL;

/// How long processes may take to end before being killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A process. Its number alone may be used again.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Process {
    pub(crate) id: i32,
    /// The time of the process's start, in clock ticks since boot.
    started: u64,
}

impl Process {
    /// The process of that id; `None` after the process's end.
    pub(crate) fn of(id: i32) -> Option<Process> {
        let (state, started) = stat(id)?;
        (state != "Z" && state != "X").then_some(Process { id, started })
    }

    pub(crate) fn runs(&self) -> bool {
        Process::of(self.id) == Some(*self)
    }

    /// Whether a signal has stopped the process. A debugger's stop is none.
    pub(crate) fn is_stopped(&self) -> bool {
        stat(self.id).is_some_and(|(state, _)| state == "T")
    }

    /// Sends a signal. A process that is stopped goes on to take it. SIGCONT is sent to every process: one that is about to
    /// stop still looks as if it ran, and one that runs ignores it.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(id) = Pid::from_raw(self.id) {
            let _ = kill_process(id, signal); // it may just have ended
            let _ = kill_process(id, Signal::CONT);
        }
    }

    /// Whether the process has a thread of that name.
    pub(crate) fn has_thread(&self, name: &str) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id)).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|comm| comm.trim_end() == name)
    }
}

/// The processes that have not ended.
pub(crate) fn running(processes: impl IntoIterator<Item = i32>) -> Vec<Process> {
    processes.into_iter().filter_map(Process::of).collect()
}

/// Terminates processes, and kills the processes that are left after some time.
pub(crate) fn end(processes: &[Process], also: impl Fn(Signal)) {
    for signal in [Signal::TERM, Signal::KILL] {
        if !processes.iter().any(Process::runs) {
            return;
        }
        also(signal);
        for process in processes.iter().filter(|process| process.runs()) {
            process.signal(signal);
        }
        let begun = Instant::now();
        while processes.iter().any(Process::runs) && begun.elapsed() < PATIENCE {
            sleep(POLL);
        }
    }
}

/// The state of a process as one letter, and the time of the process's start. `None` if it is gone.
fn stat(id: i32) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is the program's name in parentheses. It may hold any characters.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.into(), fields.nth(18)?.parse().ok()?))
}

/// Whether a process has ended and the parent has not asked for the status.
pub(crate) fn is_zombie(id: i32) -> bool {
    stat(id).is_some_and(|(state, _)| state == "Z")
}

/// Whether a process is of this program.
pub(crate) fn is_of_this_program(id: i32) -> bool {
    let own = program(std::process::id() as i32);
    own.is_some() && program(id) == own
}

/// The name of a process's program. `None` if it has ended.
fn program(process: i32) -> Option<OsString> {
    let path = std::fs::read_link(PathBuf::from(format!("/proc/{process}/exe"))).ok()?;
    path.file_name().map(ToOwned::to_owned)
}

/// The children of a process, the children's children, and so on. Each thread has its own: mpirun starts many ranks from
/// several threads.
pub(crate) fn descendants(process: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<i32> =
        lists.flat_map(|ids| ids.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    children.into_iter().flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

/// The processes of this program below a process.
pub(crate) fn ranks_below(process: i32) -> Vec<i32> {
    descendants(process).into_iter().filter(|&id| is_of_this_program(id)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn children_of_every_thread_are_found_and_their_children() {
        let (ids, (end, wait)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let starter = std::thread::spawn(move || {
            let mut child = Command::new("sh").args(["-c", "sleep 600; true"]).spawn().unwrap();
            ids.0.send(child.id() as i32).unwrap();
            let _ = wait.recv();
            let all: Vec<Process> = running(std::iter::once(child.id() as i32).chain(descendants(child.id() as i32)));
            super::end(&all, |_| ());
            child.wait().unwrap();
        });
        let child = ids.1.recv().unwrap();
        let all = loop {
            let all = descendants(std::process::id() as i32);
            if descendants(child).len() == 1 {
                break all;
            }
            std::thread::yield_now();
        };
        assert!(all.contains(&child), "{child} is not in {all:?}");
        drop(end);
        starter.join().unwrap();
    }

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
    fn a_stopped_process_is_terminated_and_need_not_be_killed() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        assert!(!process.is_stopped());
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        while !process.is_stopped() {
            std::thread::yield_now();
        }
        end(&[process], |_| ());
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn a_process_that_is_about_to_stop_is_terminated_and_need_not_be_killed() {
        use std::os::unix::process::ExitStatusExt;
        for _ in 0..200 {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let process = Process::of(child.id() as i32).unwrap();
            kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
            process.signal(Signal::TERM);
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        }
    }
}
