//! Keeps a run going: starts it anew when it fails.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// How often the run and the signals are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A signal that comes again sooner is the same request: `timeout`, launchers and terminals send one to a process and then
/// to its group.
pub const ONE_REQUEST: Duration = Duration::from_secs(1);

/// The longest wait before a start.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a supervised run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did all its steps.
    Done,
    /// Its input is wrong, which no further start would mend.
    Refused,
    /// It failed too often without getting any further, or when it was asked to end.
    Failed,
    /// It was asked to end before its last step, and goes on where it is started again.
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

/// Starts what `start` makes, and again when that fails, until it ends well or was started `max_restarts` times in a row
/// without getting any further. `progress` says how far the run is: a number that grows, none at first. What happens is
/// told to `say`.
///
/// SIGTERM, SIGINT and SIGUSR1 ask the run to end, by SIGUSR1 to what was started and to the ranks below it; a second one has
/// it terminated, with all processes of its group, and a third killed.
///
/// # Errors
/// A program that cannot be started, or is not there any more; what the operating system said.
pub fn supervise(
    start: &dyn Fn() -> Command,
    progress: &dyn Fn() -> Option<u64>,
    max_restarts: usize,
    say: &dyn Fn(&str),
) -> io::Result<Ending> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
    let mut in_vain = 0;
    loop {
        let before = progress();
        // In a group of its own, a terminal's ^C does not end it before it has saved.
        let mut run = start().stdin(Stdio::null()).process_group(0).spawn()?;
        let (status, asked) = wait(&mut run, &mut signals)?;
        match status.code() {
            Some(0) if asked => return Ok(Ending::Asked),
            Some(0) => return Ok(Ending::Done),
            Some(2) => return Ok(Ending::Refused),
            // Ended by a signal before it could heed it: all is as before.
            code if asked && code.is_none_or(|code| code > 128) => return Ok(Ending::Asked),
            _ if asked => {
                say(&format!("the run was asked to end and failed ({})", told(status)));
                return Ok(Ending::Failed);
            }
            _ => {}
        }
        in_vain = if progress() > before { 0 } else { in_vain + 1 };
        if in_vain > max_restarts {
            say(&format!(
                "the run ended ({}), {in_vain} times in a row without a new checkpoint. Fix what it says is wrong, and \
                 start it again: it goes on",
                told(status)
            ));
            return Ok(Ending::Failed);
        }
        let pause = Duration::from_secs(1 << in_vain.min(16)).min(LONGEST_WAIT);
        let vain = match in_vain {
            0 => "after a new checkpoint".to_string(),
            _ => format!("without a new checkpoint, {in_vain} of at most {max_restarts} in a row"),
        };
        say(&format!("the run ended ({}); starts it again in {} s, {vain}", told(status), pause.as_secs()));
        let begun = Instant::now();
        while begun.elapsed() < pause {
            if signals.pending().next().is_some() {
                return Ok(Ending::Asked);
            }
            sleep(LOOK);
        }
    }
}

/// Waits for a run and passes on what it is asked; how it ended, and whether it was asked to.
fn wait(run: &mut Child, signals: &mut Signals) -> io::Result<(ExitStatus, bool)> {
    let process = Pid::from_child(run);
    let mut requests = 0;
    let mut last: Option<Instant> = None;
    loop {
        if let Some(status) = run.try_wait()? {
            return Ok((status, requests > 0));
        }
        for _ in signals.pending() {
            if last.is_some_and(|last| last.elapsed() < ONE_REQUEST) {
                continue;
            }
            last = Some(Instant::now());
            requests += 1;
            // It may have ended meanwhile.
            let _ = match requests {
                1 => ask(process),
                2 => kill_process_group(process, Signal::TERM),
                _ => kill_process_group(process, Signal::KILL),
            };
        }
        sleep(LOOK);
    }
}

/// Asks a run to end: the process that was started, which passes it on if it starts ranks, and the ranks below it on this
/// machine, for not every mpirun does. One rank that knows is enough, and twice at once is once.
fn ask(process: Pid) -> rustix::io::Result<()> {
    let asked = kill_process(process, Signal::USR1);
    let program = |path: PathBuf| std::fs::read_link(path).ok()?.file_name().map(ToOwned::to_owned);
    let own = program("/proc/self/exe".into());
    for id in below(process.as_raw_nonzero().get()) {
        if let (true, Some(rank)) =
            (own.is_some() && program(format!("/proc/{id}/exe").into()) == own, Pid::from_raw(id))
        {
            let _ = kill_process(rank, Signal::USR1);
        }
    }
    asked
}

/// Processes that a process has started, and those that they have.
fn below(process: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    children.flat_map(|child| std::iter::once(child).chain(below(child))).collect()
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => status.to_string(),
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
