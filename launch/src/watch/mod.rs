//! A fault of one rank ends all ranks, within seconds, and with one line that names the rank and the cause.
//!
//! On every rank a thread reports the rank's progress over TCP to a **monitor** on rank 0 ([`heartbeat`]). The monitor
//! ([`monitor`]) decides on the rank at fault ([`decide`]): one that reports an error, one with a broken connection,
//! one that sends no heartbeats, or one that makes no progress while others wait for it. It prints the line and informs
//! all ranks. Each rank then exits without tearing anything down, because that could wait forever. Until all ranks are
//! connected, a time limit applies ([`joining`]).

pub mod activity;
mod address;
mod decide;
mod heartbeat;
pub mod joining;
mod message;
mod monitor;
pub mod ranks_file;
mod threads;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::terminal::{PRINTED, warn};
use device::{Order, Probe, Progress};

use crate::RankEnv;
use activity::{Activity, Doing};
use address::{Announced, WatchError};
use heartbeat::{Heartbeat, Reported};
use message::{Message, Sender};

/// Exit code of a rank that ended because another rank failed.
pub const PEER_FAILED: i32 = 4;

/// When a rank counts as failed.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchSettings {
    /// The interval of heartbeats. Zero turns the watch off.
    pub heartbeat: Duration,
    /// A rank that sends nothing, or makes no progress in a step, for this long is at fault.
    pub timeout: Duration,
    /// The limit for progress at the start, in warm-up, and while files are written. At least `timeout`.
    pub setup_timeout: Duration,
    /// The address for the monitor to listen at: `host` or `host:port`. `None` finds an address.
    pub address: Option<String>,
    /// The file in which rank 0 keeps the state of all ranks, for people and programs outside of the run.
    pub file: Option<PathBuf>,
}

impl Default for WatchSettings {
    fn default() -> WatchSettings {
        let seconds = Duration::from_secs;
        let (timeout, setup_timeout) = (seconds(45), seconds(600));
        WatchSettings { heartbeat: seconds(1), timeout, setup_timeout, address: None, file: None }
    }
}

/// This rank's connection to the monitor.
pub struct Watch {
    rank: usize,
    ranks: usize,
    reported: Arc<Reported>,
    sender: Arc<Mutex<Sender>>,
    /// On rank 0: closed when the monitor has ended.
    monitor: Option<Receiver<()>>,
    timeout: Duration,
}

impl Watch {
    /// Starts the watch. All ranks call it together. `None` for a single rank, or if heartbeats are off. `of_rank_0`
    /// broadcasts the text of rank 0.
    ///
    /// # Errors
    /// The monitor cannot listen, or cannot be reached.
    pub fn start(
        env: &RankEnv,
        settings: &WatchSettings,
        of_rank_0: impl Fn(String) -> String,
    ) -> Result<Option<Watch>, WatchError> {
        if env.world_size == 1 || settings.heartbeat.is_zero() {
            return Ok(None);
        }
        let mut monitor = None;
        let announced = if env.rank == 0 {
            let listening = address::listen(settings.address.as_deref(), env.is_one_node());
            let text = listening.as_ref().map_or(String::new(), |(_, announced)| announced.to_text());
            of_rank_0(text);
            let (listeners, announced) = listening?;
            let (alive, ended) = channel();
            monitor::start(listeners, announced.token, env.world_size, settings, alive)?;
            monitor = Some(ended);
            announced
        } else {
            Announced::parse(&of_rank_0(String::new()))?
        };
        let (stream, sender) = address::connect(&announced, env.rank)?;
        let sender = Arc::new(Mutex::new(sender));
        let reported = Arc::new(Reported::default());
        let heartbeat = Heartbeat::new(env.rank, reported.clone(), sender.clone(), settings);
        heartbeat::start(heartbeat, stream)?;
        let (rank, ranks, timeout) = (env.rank, env.world_size, settings.timeout);
        Ok(Some(Watch { rank, ranks, reported, sender, monitor, timeout }))
    }

    /// The place for the device's record of progress.
    pub fn progress(&self) -> Progress {
        self.reported.progress.clone()
    }

    /// The place for the run's record of this rank's host activity.
    pub fn activity(&self) -> Activity {
        self.reported.activity.clone()
    }

    /// Runs `wait`: in it all ranks wait for each other outside of the device.
    pub fn waiting<T>(&self, name: &str, wait: impl FnOnce() -> T) -> T {
        let order = Order { communicator: "world".into(), ranks: (0..self.ranks).collect(), between: None };
        self.reported.progress.begin(name, order);
        self.reported.activity.during(Doing::WaitsForRanks, wait)
    }

    /// Has each heartbeat call `probe`. An error that it returns is a fault of this rank.
    pub fn add_probe(&self, probe: Probe) {
        self.reported.probes.lock().unwrap_or_else(PoisonError::into_inner).push(probe);
    }

    /// Reports an error of this rank, and ends the process with the exit code of the error, or with 4 if another rank
    /// failed before. `follows`: another rank's fault may have caused the error.
    pub fn fail(&self, code: i32, error: &str, follows: bool) -> ! {
        let _ = self.send(&Message::Beat(self.reported.beat(Duration::ZERO)));
        let told = self.send(&Message::Fault(message::Fault { code, error: error.into(), follows }));
        if told.is_ok() {
            // The monitor's verdict usually ends this process during the sleep.
            std::thread::sleep(VERDICT);
        }
        warn(&format!("error on rank {}: {error}", self.rank));
        end_process(code)
    }

    /// Reports the clean end, after everything that ranks do together. Rank 0 waits until all ranks have reported theirs, or
    /// the monitor has found one that does not.
    pub fn goodbye(&self) {
        self.reported.left.store(true, Ordering::Release);
        let told = self.send(&Message::Goodbye);
        if let (Ok(()), Some(ended)) = (told, &self.monitor)
            && let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(self.timeout * 2)
        {
            warn("notice: some ranks have not reported their end");
        }
    }

    fn send(&self, message: &Message) -> std::io::Result<()> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(message)
    }
}

/// The longest time for the monitor to answer with a verdict.
const VERDICT: Duration = Duration::from_secs(5);

/// Writes a last line to the run's logs and, if `printed`, to standard error. Waits a short time only: the hang may be
/// that of the file or the terminal.
pub fn last_words(line: &str, printed: bool) {
    let (done, wait) = channel();
    let words = [printed.then_some(warn as fn(&str)), Some(|line| tracing::error!(target: PRINTED, "{line}"))];
    for say in words.into_iter().flatten() {
        let (line, done) = (line.to_string(), done.clone());
        let write = move || {
            say(&line);
            let _ = done.send(());
        };
        if std::thread::Builder::new().spawn(write).is_ok() {
            let _ = wait.recv_timeout(Duration::from_millis(300));
        }
    }
}

/// Ends the process without tearing anything down.
fn end_process(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}
