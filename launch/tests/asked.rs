//! A request to end that the supervisor gets reaches the run. One test, because signals are the whole process's.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::thread::{sleep, spawn};
use std::time::Duration;

use launch::watch::WatchSettings;
use launch::{Ending, Supervised, supervise};

struct Script {
    script: String,
    starts: Cell<usize>,
}

impl Supervised for Script {
    fn command(&self) -> Command {
        self.starts.set(self.starts.get() + 1);
        let mut command = Command::new("sh");
        command.args(["-c", &self.script]);
        command
    }

    fn progress(&self) -> Option<u64> {
        None
    }

    fn is_in_use(&self) -> bool {
        false
    }

    fn say(&self, _: &str) {}
}

/// Asks a script to end once it has made a file, by so many signals, two seconds apart; how it ended.
fn asked(script: &str, signals: usize) -> Ending {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!("{script}; touch {}; while true; do sleep 0.1; done", ready.display());
    let asks = spawn(move || {
        while !Path::new(&ready).exists() {
            sleep(Duration::from_millis(10));
        }
        for number in 0..signals {
            sleep(Duration::from_secs(if number == 0 { 0 } else { 2 }));
            signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        }
    });
    let run = Script { script, starts: Cell::new(0) };
    let ending = supervise(&run, 3, &WatchSettings::default()).unwrap();
    asks.join().unwrap();
    assert_eq!(run.starts.get(), 1, "what was asked to end is not started again");
    ending
}

#[test]
fn a_request_is_passed_on_a_second_terminates_and_a_third_kills() {
    assert_eq!(asked("trap 'exit 0' USR1", 1), Ending::Asked);
    assert_eq!(asked("true", 1), Ending::Asked, "ended by the signal");
    assert_eq!(asked("trap 'exit 3' USR1", 1), Ending::Failed);
    assert_eq!(asked("trap '' USR1", 2), Ending::Asked);
    assert_eq!(asked("trap '' USR1 TERM", 3), Ending::Asked);
}
