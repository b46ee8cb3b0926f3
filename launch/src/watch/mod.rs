//! One fault of a distributed run ends all ranks, soon and with one line that says whose it was.
//!
//! Every rank has a thread that tells a **monitor** on rank 0, over TCP, how far the rank has come ([`heartbeat`]). The
//! monitor ([`monitor`]) decides who is at fault ([`decide`]): a rank that says so, one whose connection breaks, one that
//! is not heard of, or one that makes no progress while others wait for it. It prints the line and tells all; each rank
//! then ends its process as it is: on a fault nothing is torn down, for that could wait for ever. Until all ranks are
//! connected there is a limit of time ([`joining`]).

pub mod activity;
pub mod address;
pub mod decide;
mod heartbeat;
pub mod joining;
pub mod message;
mod monitor;
pub mod settings;

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::terminal::{PRINTED, warn};
use device::{Order, Probe, Progress};

use crate::RankEnv;
use activity::{Activity, Doing};
use address::{Announced, WatchError};
use heartbeat::{Heart, Heartbeat};
use message::{Message, Sender};
pub use settings::WatchSettings;

/// Exit code of a rank that ended because another failed.
pub const PEER_FAILED: i32 = 4;

/// This rank's part in the watch.
pub struct Watch {
    rank: usize,
    ranks: usize,
    heart: Arc<Heart>,
    sender: Arc<Mutex<Sender>>,
    /// Closed when the monitor, on rank 0, has ended.
    monitor: Option<Receiver<()>>,
    timeout: Duration,
}

impl Watch {
    /// Starts to watch, all ranks together; nothing is started for a rank alone. `of_rank_0` gives all the text of rank 0.
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
            let listening = address::listen(settings.address.as_deref(), env.local_size == env.world_size);
            let text = listening.as_ref().map_or(String::new(), |(_, announced)| announced.to_string());
            of_rank_0(text);
            let (listener, announced) = listening?;
            let (alive, ended) = channel();
            monitor::start(listener, announced.token, env.world_size, settings, alive)?;
            monitor = Some(ended);
            announced
        } else {
            Announced::parse(&of_rank_0(String::new()))?
        };
        let (stream, sender) = address::connect(&announced, env.rank)?;
        let sender = Arc::new(Mutex::new(sender));
        let heart = Arc::new(Heart::default());
        let heartbeat = Heartbeat::new(env.rank, heart.clone(), sender.clone(), settings);
        heartbeat::start(heartbeat, stream)?;
        let (rank, ranks, timeout) = (env.rank, env.world_size, settings.timeout);
        Ok(Some(Watch { rank, ranks, heart, sender, monitor, timeout }))
    }

    /// Where the device leaves its marks.
    pub fn progress(&self) -> Progress {
        self.heart.progress.clone()
    }

    /// What this rank's host does, to be kept current.
    pub fn activity(&self) -> Activity {
        self.heart.activity.clone()
    }

    /// Does `wait`, in which all ranks wait for each other by the host's own means.
    pub fn waiting<T>(&self, name: &str, wait: impl FnOnce() -> T) -> T {
        let order = Order { communicator: "world".into(), ranks: (0..self.ranks).collect(), between: None };
        self.heart.progress.begin(name, order);
        self.heart.activity.during(Doing::WaitsForRanks, wait)
    }

    /// Asks `probe` at each heartbeat; its error is a fault of this rank.
    pub fn ask(&self, probe: Probe) {
        self.heart.probes.lock().unwrap_or_else(PoisonError::into_inner).push(probe);
    }

    /// Tells of this rank's own error and ends the process with its exit code, or 4 if another rank failed before.
    /// `follows` says that it may have come from another rank's.
    pub fn fail(&self, code: i32, error: &str, follows: bool) -> ! {
        let _ = self.send(&Message::Beat(self.heart.beat(Duration::ZERO)));
        let told = self.send(&Message::Fault(message::Fault { code, error: error.into(), follows }));
        if told.is_ok() {
            // The verdict ends this process meanwhile.
            std::thread::sleep(VERDICT);
        }
        warn(&format!("error on rank {}: {error}", self.rank));
        end_process(code)
    }

    /// The clean end, after all that ranks do together: the others are no longer waited for. On rank 0 until they have
    /// said so too, or the monitor has found who does not.
    pub fn goodbye(&self) {
        self.heart.left.store(true, Ordering::Release);
        let told = self.send(&Message::Goodbye);
        if let (Ok(()), Some(ended)) = (told, &self.monitor)
            && let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(self.timeout * 2)
        {
            warn("notice: some ranks have not said that they are done");
        }
    }

    fn send(&self, message: &Message) -> std::io::Result<()> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(message)
    }
}

/// The longest that a verdict takes to come back.
const VERDICT: Duration = Duration::from_secs(5);

/// Writes a last line to the run's logs and, if wanted, on standard error, for as long as that takes at most: what they
/// are written to may be what hangs.
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

/// Ends the process as it is.
fn end_process(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}
