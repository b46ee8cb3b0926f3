//! A rank's side of the watch: a thread that tells how far the rank has come, and ends it when the monitor says so.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use device::{Probe, Progress};

use super::activity::Activity;
use super::message::{Beat, Begun, Fault, Message, Receiver, Sender, Verdict};
use super::{PEER_FAILED, WatchSettings, end_process, note};
use crate::terminal::warn;

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

pub(super) struct Heartbeat {
    rank: usize,
    heart: Arc<Heart>,
    sender: Arc<Mutex<Sender>>,
    interval: Duration,
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
        Heartbeat { rank, heart, sender, interval: settings.heartbeat, seen: (0, 0), quiet: Duration::ZERO }
    }

    fn run(mut self, mut receiver: Receiver) {
        let mut looked = Instant::now();
        let mut told: Option<Instant> = None;
        loop {
            let beat = self.look(looked.elapsed());
            looked = Instant::now();
            if told.is_none_or(|told| told.elapsed() >= self.interval) {
                told = Some(looked);
                self.send(&Message::Beat(beat));
                if let Some(error) = self.failed_transfer() {
                    self.send(&Message::Fault(Fault { code: 3, error, follows: true }));
                }
            }
            let (verdicts, closed) = receiver.receive::<Verdict>();
            if self.rank == 0 {
                // The monitor is in this process, and ends it.
                std::thread::sleep(LOOK.saturating_sub(looked.elapsed()));
                continue;
            }
            if let Some(verdict) = verdicts.first() {
                self.end(verdict);
            }
            if closed && self.heart.left.load(Ordering::Acquire) {
                return;
            }
            if closed {
                self.bereft();
            }
        }
    }

    /// How far the rank has come, when `passed` is the time since the last look.
    fn look(&mut self, passed: Duration) -> Beat {
        let reached = self.heart.progress.reached();
        let now = (reached.marks, self.heart.activity.changes());
        // Time in which the whole process was stopped is not the device's.
        self.quiet = if now == self.seen { self.quiet + passed.min(Duration::from_secs(1)) } else { Duration::ZERO };
        self.seen = now;
        let begun = |(order, count): (device::Order, u64)| Begun {
            communicator: order.communicator,
            ranks: order.ranks,
            between: order.between,
            count,
        };
        Beat {
            doing: self.heart.activity.now(),
            quiet_ms: self.quiet.as_millis() as u64,
            step: reached.step,
            region: reached.region,
            transfer: reached.transfer,
            begun: reached.orders.into_iter().map(begun).collect(),
        }
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
        note(&verdict.line);
        if verdict.rank == self.rank {
            end_process(verdict.code);
        }
        if verdict.alive {
            std::thread::sleep(PRECEDENCE);
        }
        end_process(PEER_FAILED)
    }

    /// Rank 0 went away without a verdict.
    fn bereft(&self) -> ! {
        let line = format!("rank {} ends: rank 0, which watches over all, died or its node went down", self.rank);
        warn(&line);
        note(&line);
        end_process(PEER_FAILED)
    }
}
