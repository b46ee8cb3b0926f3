//! A rank's side of the watch: a thread that reports the rank's progress, and ends the process on the monitor's verdict.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{Order, Probe, Progress};

use super::activity::Activity;
use super::message::{Beat, Fault, Message, Receiver, Reply, Sender, TransferCount, Verdict};
use super::threads::threads_of;
use super::{PEER_FAILED, WatchSettings, end_process, last_words};

/// The interval at which the rank's progress is polled.
const POLL: Duration = Duration::from_millis(100);
/// By how much the rank at fault exits before the others, so that the launcher sees that rank's exit code.
const PRECEDENCE: Duration = Duration::from_millis(500);

/// The source of the thread's reports.
#[derive(Default)]
pub(super) struct Reported {
    pub(super) progress: Progress,
    pub(super) activity: Activity,
    pub(super) probes: Mutex<Vec<Probe>>,
    /// Whether this rank has reported a clean end. From then on other ranks may exit before it.
    pub(super) left: AtomicBool,
}

impl Reported {
    /// The rank's progress. `quiet` is the time without any.
    pub(super) fn beat(&self, quiet: Duration) -> Beat {
        let reached = self.progress.reached();
        let begun = |(order, count): (Order, u64)| TransferCount {
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
    reported: Arc<Reported>,
    sender: Arc<Mutex<Sender>>,
    interval: Duration,
    timeout: Duration,
    /// Time since the monitor's last message.
    unheard: Duration,
    /// The last values of the device's marks and the changes of activity, and the time for which both are the same.
    seen: (u64, u64),
    quiet: Duration,
}

/// Starts the thread. It runs until the process ends, or until rank 0's ends after a clean end.
pub(super) fn start(heartbeat: Heartbeat, stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(POLL))?;
    let receiver = Receiver::new(stream);
    std::thread::Builder::new().name("heartbeat".into()).spawn(move || heartbeat.run(receiver))?;
    Ok(())
}

impl Heartbeat {
    pub(super) fn new(
        rank: usize,
        reported: Arc<Reported>,
        sender: Arc<Mutex<Sender>>,
        settings: &WatchSettings,
    ) -> Heartbeat {
        let WatchSettings { heartbeat: interval, timeout, .. } = *settings;
        let (unheard, quiet) = (Duration::ZERO, Duration::ZERO);
        Heartbeat { rank, reported, sender, interval, timeout, unheard, seen: (0, 0), quiet }
    }

    fn run(mut self, mut receiver: Receiver) {
        let mut polled = Instant::now();
        let mut told: Option<Instant> = None;
        loop {
            let beat = self.progress(a_second_at_most(polled));
            polled = Instant::now();
            if told.is_none_or(|told| told.elapsed() >= self.interval) {
                told = Some(polled);
                self.send(&Message::Beat(beat));
                if let Some(error) = self.failed_transfer() {
                    self.send(&Message::Fault(Fault { code: 3, error, follows: true }));
                }
            }
            let (replies, closed) = receiver.receive::<Reply>();
            if self.rank == 0 {
                // The monitor is in this process, and ends it itself.
                std::thread::sleep(POLL.saturating_sub(polled.elapsed()));
                continue;
            }
            self.unheard = if replies.is_empty() { self.unheard + a_second_at_most(polled) } else { Duration::ZERO };
            for reply in replies {
                if let Reply::Verdict(verdict) = reply {
                    self.end(&verdict);
                }
            }
            if closed && self.reported.left.load(Ordering::Acquire) {
                return;
            }
            if closed || self.unheard > self.timeout {
                self.end_without_monitor(closed);
            }
        }
    }

    /// The rank's progress. `passed` is the time since the previous call.
    fn progress(&mut self, passed: Duration) -> Beat {
        let now = (self.reported.progress.reached().marks, self.reported.activity.changes());
        self.quiet = if now == self.seen { self.quiet + passed } else { Duration::ZERO };
        self.seen = now;
        self.reported.beat(self.quiet)
    }

    fn failed_transfer(&self) -> Option<String> {
        let probes = self.reported.probes.lock().unwrap_or_else(PoisonError::into_inner);
        probes.iter().find_map(|probe| probe().err()).map(|error| error.to_string())
    }

    /// Sends a message. A failure shows as a closed connection as well.
    fn send(&self, message: &Message) {
        let _ = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(message);
    }

    fn end(&self, verdict: &Verdict) -> ! {
        last_words(&verdict.line, false);
        if let Some((_, process)) = verdict.shows.filter(|(rank, _)| *rank == self.rank) {
            last_words(&threads_of(verdict.rank, process), true);
        }
        if verdict.rank == self.rank {
            end_process(verdict.code);
        }
        if verdict.alive {
            std::thread::sleep(PRECEDENCE);
        }
        end_process(PEER_FAILED)
    }

    /// Ends the process, because rank 0 exited without a verdict or is silent. Every remaining rank prints a line: none
    /// knows the other remaining ranks, and a single speaker could be dead too, for example if rank 0's node is down.
    fn end_without_monitor(&self, closed: bool) -> ! {
        if !closed {
            // If rank 0 continues after all, it must not report this rank as the first that failed.
            self.send(&Message::LostMonitor);
        }
        let what = match closed {
            true => "died without a word (killed, out of memory, or its node went down)".into(),
            false => format!(
                "was not heard of for {} s: the process is stopped, or its node or the network is down",
                self.unheard.as_secs()
            ),
        };
        let line = format!("rank {} ends because rank 0, which runs the monitor, {what}", self.rank);
        last_words(&line, true);
        end_process(PEER_FAILED)
    }
}

/// The time since `since`, at most a second: time does not count while this process is stopped or its machine is
/// asleep.
fn a_second_at_most(since: Instant) -> Duration {
    since.elapsed().min(Duration::from_secs(1))
}
