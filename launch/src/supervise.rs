//! Runs a command, and starts it again when it fails.

use std::io;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::child::{Ended, POLL, describe, listen, run_child_with};

/// The longest pause before the command is started again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a supervised run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run did all its steps.
    Done,
    /// The user's input is wrong. Starting again would not help.
    Refused,
    /// The run failed too often without progress, or it failed after it was asked to end.
    Failed,
    /// The run was asked to end, and did so before its last step. It can be continued.
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

/// Runs the command that `start` makes, and again when it fails, until it succeeds or was started again `max_restarts` times
/// in a row without progress. `progress` returns the number of steps that are saved, `None` at first. `say` gets a line for
/// each event.
///
/// SIGTERM, SIGINT and SIGUSR1 ask the run to end: the command and the ranks below it get SIGUSR1. A second signal terminates
/// the command's process group, and a third one kills it.
///
/// # Errors
/// The program cannot be started, or another error of the operating system.
pub fn supervise(
    start: &dyn Fn() -> Command,
    progress: &dyn Fn() -> Option<u64>,
    max_restarts: usize,
    say: &dyn Fn(&str),
) -> io::Result<Ending> {
    let mut signals = listen()?;
    let mut failures = 0;
    loop {
        let before = progress();
        let Ended { status, asked } = run_child_with(start(), &mut signals)?;
        match status.code() {
            Some(0) if asked => return Ok(Ending::Asked),
            Some(0) => return Ok(Ending::Done),
            Some(2) => return Ok(Ending::Refused),
            // A signal ended the run before its first step. Nothing has changed.
            code if asked && code.is_none_or(|code| code > 128) => return Ok(Ending::Asked),
            _ if asked => {
                say(&format!("the run was asked to end and failed ({})", describe(status)));
                return Ok(Ending::Failed);
            }
            _ => {}
        }
        failures = if progress() > before { 0 } else { failures + 1 };
        if failures > max_restarts {
            say(&format!(
                "the run ended ({}), {failures} times in a row without a new checkpoint. Fix what it says is wrong, and \
                 start it again: it goes on",
                describe(status)
            ));
            return Ok(Ending::Failed);
        }
        let pause = Duration::from_secs(1 << failures.min(16)).min(LONGEST_WAIT);
        let count = match failures {
            0 => "after a new checkpoint".to_string(),
            _ => format!("without a new checkpoint, {failures} of at most {max_restarts} in a row"),
        };
        say(&format!("the run ended ({}); starts it again in {} s, {count}", describe(status), pause.as_secs()));
        let begun = Instant::now();
        while begun.elapsed() < pause {
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

    /// Supervises a shell script whose `$N` is the number of the start, from 1; how it ended, starts, and what was said.
    fn supervised(
        script: &str,
        max_restarts: usize,
        progress: &dyn Fn(u64) -> Option<u64>,
    ) -> (Ending, u64, Vec<String>) {
        let (starts, said) = (Cell::new(0), RefCell::new(Vec::new()));
        let start = || {
            starts.set(starts.get() + 1);
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("N", starts.get().to_string());
            command
        };
        let say = |text: &str| said.borrow_mut().push(text.to_string());
        let ending = supervise(&start, &|| progress(starts.get()), max_restarts, &say).unwrap();
        (ending, starts.get(), said.into_inner())
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
    fn a_program_that_is_not_there_is_an_error() {
        let start = || Command::new("/no/such/program");
        assert!(supervise(&start, &|| None, 3, &|_| ()).is_err());
    }
}
