//! A rank's side of the watch: a thread that tells how far the rank has come, and ends it when the monitor says so.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{Order, Probe, Progress};

use super::activity::Activity;
use super::message::{Beat, Begun, Fault, Message, Receiver, Reply, Sender, Verdict};
use super::{PEER_FAILED, WatchSettings, end_process, last_words};

/// Between two looks at what the rank does.
const LOOK: Duration = Duration::from_millis(100);
/// How long ranks that are well leave the one at fault to end first, so that its exit code is the one that is seen.
const PRECEDENCE: Duration = Duration::from_millis(500);

/// What the thread reports on.
#[derive(Default)]
pub(super) struct Heart {
    pub(super) progress: Progress,
    pub(super) activity: Activity,
    pub(super) probes: Mutex<Vec<Probe>>,
    /// This rank has said goodbye, and others may end before it.
    pub(super) left: AtomicBool,
}

impl Heart {
    /// How far the rank has come, which was `quiet` for so long.
    pub(super) fn beat(&self, quiet: Duration) -> Beat {
        let reached = self.progress.reached();
        let begun = |(order, count): (Order, u64)| Begun {
            communicator: order.communicator,
            ranks: order.ranks,
            between: order.between,
            count,
        };
        Beat {
            doing: self.activity.now(),
            quiet_ms: quiet.as_millis() as u64,
            step: reached.step,
            region: reached.region,
            transfer: reached.transfer,
            begun: reached.orders.into_iter().map(begun).collect(),
        }
    }
}

pub(super) struct Heartbeat {
    rank: usize,
    heart: Arc<Heart>,
    sender: Arc<Mutex<Sender>>,
    interval: Duration,
    timeout: Duration,
    /// Since the monitor was heard of.
    unheard: Duration,
    /// Marks and changes of activity seen last, and for how long they have been the same.
    seen: (u64, u64),
    quiet: Duration,
}

/// Starts the thread; it goes on until the process ends, or rank 0's after a goodbye.
pub(super) fn start(heartbeat: Heartbeat, stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    let receiver = Receiver::new(stream);
    std::thread::Builder::new().name("heartbeat".into()).spawn(move || heartbeat.run(receiver))?;
    Ok(())
}

impl Heartbeat {
    pub(super) fn new(
        rank: usize,
        heart: Arc<Heart>,
        sender: Arc<Mutex<Sender>>,
        settings: &WatchSettings,
    ) -> Heartbeat {
        let WatchSettings { heartbeat: interval, timeout, .. } = *settings;
        let (unheard, quiet) = (Duration::ZERO, Duration::ZERO);
        Heartbeat { rank, heart, sender, interval, timeout, unheard, seen: (0, 0), quiet }
    }

    fn run(mut self, mut receiver: Receiver) {
        let mut looked = Instant::now();
        let mut told: Option<Instant> = None;
        loop {
            let beat = self.look(a_second_at_most(looked));
            looked = Instant::now();
            if told.is_none_or(|told| told.elapsed() >= self.interval) {
                told = Some(looked);
                self.send(&Message::Beat(beat));
                if let Some(error) = self.failed_transfer() {
                    self.send(&Message::Fault(Fault { code: 3, error, follows: true }));
                }
            }
            let (replies, closed) = receiver.receive::<Reply>();
            if self.rank == 0 {
                // The monitor is in this process, and ends it.
                std::thread::sleep(LOOK.saturating_sub(looked.elapsed()));
                continue;
            }
            self.unheard = if replies.is_empty() { self.unheard + a_second_at_most(looked) } else { Duration::ZERO };
            for reply in replies {
                if let Reply::Verdict(verdict) = reply {
                    self.end(&verdict);
                }
            }
            if closed && self.heart.left.load(Ordering::Acquire) {
                return;
            }
            if closed || self.unheard > self.timeout {
                self.bereft(closed);
            }
        }
    }

    /// How far the rank has come, when `passed` is the time since the last look.
    fn look(&mut self, passed: Duration) -> Beat {
        let now = (self.heart.progress.reached().marks, self.heart.activity.changes());
        self.quiet = if now == self.seen { self.quiet + passed } else { Duration::ZERO };
        self.seen = now;
        self.heart.beat(self.quiet)
    }

    fn failed_transfer(&self) -> Option<String> {
        let probes = self.heart.probes.lock().unwrap_or_else(PoisonError::into_inner);
        probes.iter().find_map(|probe| probe().err()).map(|error| error.to_string())
    }

    /// A failure shows as a closed connection too.
    fn send(&self, message: &Message) {
        let _ = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(message);
    }

    fn end(&self, verdict: &Verdict) -> ! {
        last_words(&verdict.line, false);
        if verdict.rank == self.rank {
            end_process(verdict.code);
        }
        if verdict.alive {
            std::thread::sleep(PRECEDENCE);
        }
        end_process(PEER_FAILED)
    }

    /// Rank 0 went away without a verdict, or is not heard of. Every rank that is left says so: none knows which others are,
    /// and one that were to speak for all may be gone too, as when rank 0's node goes down.
    fn bereft(&self, closed: bool) -> ! {
        if !closed {
            // Should rank 0 go on after all, it is not to take this one for the first that failed.
            self.send(&Message::Forsaken);
        }
        let what = match closed {
            true => "died without a word (killed, out of memory, or its node went down)".into(),
            false => format!(
                "was not heard of for {} s: the process is stopped, or its node or the network is down",
                self.unheard.as_secs()
            ),
        };
        let line = format!("rank {} ends, for rank 0, which watches over all, {what}", self.rank);
        last_words(&line, true);
        end_process(PEER_FAILED)
    }
}

/// The time that passed. Time in which this process itself was stopped, or its machine asleep, counts against nobody.
fn a_second_at_most(since: Instant) -> Duration {
    since.elapsed().min(Duration::from_secs(1))
}
