//! Runs a command, and starts the command again after a failure.

use std::io;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::format::counted;

use crate::child::{Ended, POLL, describe, exit_code, listen, run_child};
use crate::leftovers::remove_leftovers;
use crate::strangers::Reach;
use crate::watch::WatchSettings;

/// The longest pause before the command is started again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a supervised run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run did all steps.
    Done,
    /// The run has never begun, because the user's input is wrong. Starting again would not help.
    Refused,
    /// The run failed too often without progress, or failed after a request to end.
    Failed,
    /// The run was asked to end, and ended before the last step. It can be continued.
    Asked,
}

impl Ending {
    /// The supervisor's exit code. 75 is `EX_TEMPFAIL` of BSD's `sysexits.h`: try again later.
    pub fn exit_code(self) -> i32 {
        match self {
            Ending::Done => 0,
            Ending::Refused => 2,
            Ending::Failed => 3,
            Ending::Asked => 75,
        }
    }
}

/// A run that can be started again.
pub trait Supervised {
    /// The command of the next start.
    fn command(&self) -> Command;

    /// The number of steps that are saved. `None` at first.
    fn progress(&self) -> Option<u64>;

    /// Whether a process has the run's folders. It may be one that is about to end.
    fn is_in_use(&self) -> bool;

    /// Tells the user a line.
    fn say(&self, text: &str);
}

/// Starts the run, and again after each failure, until the run succeeds or was started again `max_restarts` times in a
/// row without progress. Before each start it removes shared memory that killed ranks have left, and temporary files that
/// a killed mpirun has left.
///
/// Exit code 2 is final if the run has never begun: then the input is wrong. Later, or while another process has the run's
/// folders, it is a failure like others: a file may be away for a moment.
///
/// A run may stand still without its own watch noticing: all its processes are stopped, or its launcher outlives its
/// ranks or is held up at the start. Such a run is ended and has failed. `watch` has the times.
///
/// SIGTERM, SIGINT and SIGUSR1 ask the run to end: the command and the ranks below it get SIGUSR1. A second signal terminates
/// the command's process group, and a third one kills it. If this process is killed, the command is terminated.
///
/// # Errors
/// The program cannot be started, and the run has never begun; another error of the operating system.
pub fn supervise(run: &dyn Supervised, max_restarts: usize, watch: &WatchSettings) -> io::Result<Ending> {
    let mut signals = listen()?;
    let (mut failures, mut begun) = (0, false);
    loop {
        let before = run.progress();
        begun |= before.is_some();
        let in_use = run.is_in_use();
        remove_leftovers();
        // Its launcher may have daemons on other machines.
        let (ended, asked, code) = match run_child(run.command(), &mut signals, watch, Reach::OtherMachines) {
            Ok(Ended { asked, trouble: Some(trouble), .. }) => (trouble, asked, None),
            Ok(Ended { status, asked, .. }) => (describe(status), asked, Some(exit_code(status))),
            Err(error) if begun => (format!("it cannot be started: {error}"), false, None),
            Err(error) => return Err(error),
        };
        match code {
            Some(0) if asked => return Ok(Ending::Asked),
            Some(0) => return Ok(Ending::Done),
            Some(2) if !begun && !in_use && !run.is_in_use() => return Ok(Ending::Refused),
            // A signal ended the run before its first step. Nothing has changed.
            Some(code) if asked && code > 128 => return Ok(Ending::Asked),
            _ if asked => {
                run.say(&format!("the run was asked to end and failed ({ended})"));
                return Ok(Ending::Failed);
            }
            code => begun |= code != Some(2),
        }
        failures = if run.progress() > before { 0 } else { failures + 1 };
        if failures > max_restarts {
            run.say(&format!(
                "the run ended ({ended}), {} in a row without a new checkpoint. Fix what it says is wrong, \
                 and start it again: it goes on",
                counted(failures, "time")
            ));
            return Ok(Ending::Failed);
        }
        let pause = Duration::from_secs(1 << failures.min(16)).min(LONGEST_WAIT);
        let count = match failures {
            0 => "after a new checkpoint".to_string(),
            _ => format!("without a new checkpoint, {failures} of at most {max_restarts} in a row"),
        };
        run.say(&format!("the run ended ({ended}); starts it again in {} s, {count}", pause.as_secs()));
        let since = Instant::now();
        while since.elapsed() < pause {
            if signals.pending().next().is_some() {
                return Ok(Ending::Asked);
            }
            sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A shell script. Its `$N` is the number of the start, from 1.
    struct Script<'t> {
        script: &'t str,
        progress: &'t dyn Fn(u64) -> Option<u64>,
        in_use: bool,
        starts: Cell<u64>,
        said: RefCell<Vec<String>>,
    }

    impl Supervised for Script<'_> {
        fn command(&self) -> Command {
            self.starts.set(self.starts.get() + 1);
            let mut command = Command::new("sh");
            command.args(["-c", self.script]).env("N", self.starts.get().to_string());
            command
        }

        fn progress(&self) -> Option<u64> {
            (self.progress)(self.starts.get())
        }

        fn is_in_use(&self) -> bool {
            self.in_use
        }

        fn say(&self, text: &str) {
            self.said.borrow_mut().push(text.to_string());
        }
    }

    fn run<'t>(script: &'t str, progress: &'t dyn Fn(u64) -> Option<u64>) -> Script<'t> {
        Script { script, progress, in_use: false, starts: Cell::new(0), said: RefCell::default() }
    }

    /// Supervises a script. Returns its end, the number of starts, and the messages.
    fn supervised(
        script: &str,
        max_restarts: usize,
        progress: &dyn Fn(u64) -> Option<u64>,
    ) -> (Ending, u64, Vec<String>) {
        let run = run(script, progress);
        let ending = supervise(&run, max_restarts, &WatchSettings::default()).unwrap();
        (ending, run.starts.get(), run.said.into_inner())
    }

    #[test]
    fn a_run_that_fails_is_started_again_until_it_is_done() {
        let (ending, starts, said) = supervised("[ $N = 3 ] || exit 4", 1, &Some);
        assert_eq!((ending, starts), (Ending::Done, 3));
        assert_eq!(said, ["the run ended (exit code 4); starts it again in 1 s, after a new checkpoint"; 2]);
    }

    #[test]
    fn a_run_that_gets_no_further_is_given_up_and_starts_that_did_do_not_count() {
        let (ending, starts, said) = supervised("kill -9 $$", 1, &|starts| Some(starts.min(1)));
        assert_eq!((ending, starts), (Ending::Failed, 3));
        assert!(
            said[1].ends_with("(signal 9); starts it again in 2 s, without a new checkpoint, 1 of at most 1 in a row")
        );
        assert!(
            said[2].starts_with("the run ended (signal 9), 2 times in a row without a new checkpoint."),
            "{said:?}"
        );
    }

    #[test]
    fn wrong_input_is_not_tried_again() {
        assert_eq!(supervised("exit 2", 5, &|_| None), (Ending::Refused, 1, Vec::new()));
    }

    #[test]
    fn a_run_that_has_begun_and_refuses_its_input_is_tried_again() {
        // It has failed otherwise before: the file that it now misses was there.
        let (ending, starts, said) = supervised("case $N in 1) exit 3;; 2) exit 2;; esac", 3, &|_| None);
        assert_eq!((ending, starts), (Ending::Done, 3), "{said:?}");
        // It has a checkpoint.
        let (ending, starts, said) = supervised("[ $N = 2 ] || exit 2", 1, &|_| Some(7));
        assert_eq!((ending, starts), (Ending::Done, 2));
        assert!(said[0].starts_with("the run ended (exit code 2); starts it again in 2 s"), "{said:?}");
    }

    #[test]
    fn a_folder_that_is_in_use_is_waited_for() {
        let run = Script { in_use: true, ..run("[ $N = 2 ] || exit 2", &|_| None) };
        assert_eq!((supervise(&run, 1, &WatchSettings::default()).unwrap(), run.starts.get()), (Ending::Done, 2));
    }

    /// A program that is there only for the program's first start.
    struct Away(Cell<usize>, Option<u64>);

    impl Supervised for Away {
        fn command(&self) -> Command {
            self.0.set(self.0.get() + 1);
            Command::new(if self.0.get() == 1 { "/no/such/program" } else { "true" })
        }

        fn progress(&self) -> Option<u64> {
            self.1
        }

        fn is_in_use(&self) -> bool {
            false
        }

        fn say(&self, _: &str) {}
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_unless_the_run_has_begun() {
        assert!(supervise(&Away(Cell::new(0), None), 3, &WatchSettings::default()).is_err());
        assert_eq!(supervise(&Away(Cell::new(0), Some(1)), 3, &WatchSettings::default()).unwrap(), Ending::Done);
    }
}
