//! The monitor: a thread on rank 0 that receives the reports of all ranks and ends the run when one is at fault.

use std::mem::{Discriminant, discriminant};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::decide::{Cause, Limits, Problem, RankStatus, decide};
use super::message::{Message, Receiver, Reply, Sender, Verdict};
use super::{PEER_FAILED, WatchSettings, end_process, last_words};

/// The interval at which all connections are polled.
const POLL: Duration = Duration::from_millis(50);
/// How long a new connection may take to send its hello. A rank sends it at once; port scanners do not.
const HELLO: Duration = Duration::from_secs(30);
/// How long ranks may take to read the verdict and exit.
const FAREWELL: Duration = Duration::from_secs(2);

struct Monitor {
    listener: TcpListener,
    token: u64,
    heartbeat: Duration,
    limits: Limits,
    /// Connections without a hello so far.
    pending: Vec<PendingConnection>,
    connections: Vec<Option<(Receiver, Sender)>>,
    statuses: Vec<RankStatus>,
}

/// A connection that has not sent its hello, and its age.
struct PendingConnection {
    receiver: Receiver,
    sender: Sender,
    waited: Duration,
}

/// A cause that has not persisted for long enough to end the run.
#[derive(Default)]
struct Suspicion {
    of: Option<(usize, Discriminant<Problem>)>,
    held: Duration,
}

impl Suspicion {
    fn rank(&self) -> Option<usize> {
        self.of.map(|(rank, _)| rank)
    }

    /// How long the cause has persisted, when `passed` is the time since the previous call. The time starts again with
    /// another rank or another problem.
    fn held(&mut self, cause: Option<&Cause>, passed: Duration) -> Duration {
        let of = cause.map(|cause| (cause.rank, discriminant(&cause.problem)));
        if of != self.of {
            *self = Suspicion { of, held: Duration::ZERO };
        }
        self.held += passed;
        self.held
    }
}

/// Starts the monitor's thread. It serves `ranks` ranks on `listener` until all have reported their clean end, and then drops
/// `alive`.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(
    listener: TcpListener,
    token: u64,
    ranks: usize,
    settings: &WatchSettings,
    alive: mpsc::Sender<()>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let monitor = Monitor {
        listener,
        token,
        heartbeat: settings.heartbeat,
        limits: Limits { step: settings.timeout, setup: settings.setup_timeout },
        pending: Vec::new(),
        connections: (0..ranks).map(|_| None).collect(),
        statuses: vec![RankStatus::default(); ranks],
    };
    std::thread::Builder::new().name("monitor".into()).spawn(move || {
        monitor.run();
        drop(alive);
    })?;
    Ok(())
}

impl Monitor {
    fn run(mut self) {
        let mut last = Instant::now();
        let (mut suspicion, mut silent) = (Suspicion::default(), Duration::ZERO);
        while !self.statuses.iter().all(|row| row.left) {
            std::thread::sleep(POLL);
            // Time in which this process was stopped, or its machine was asleep, does not count against the ranks.
            let passed = last.elapsed().min(Duration::from_secs(1));
            last = Instant::now();
            self.accept(passed);
            self.receive(passed);
            silent += passed;
            if silent >= self.heartbeat {
                silent = Duration::ZERO;
                self.send_all(&Reply::Beat);
            }
            let cause = decide(&self.statuses, self.limits, suspicion.rank());
            let held = suspicion.held(cause.as_ref(), passed);
            if let Some(cause) = cause.filter(|cause| held >= cause.problem.grace(self.heartbeat)) {
                self.end(&cause);
            }
        }
    }

    /// Accepts new connections, and assigns those that have sent a hello to their rank. Drops those that sent none in time.
    fn accept(&mut self, passed: Duration) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.pending.extend(open(stream));
        }
        let mut pending = Vec::new();
        for PendingConnection { mut receiver, sender, waited } in std::mem::take(&mut self.pending) {
            let waited = waited + passed;
            let (messages, closed) = receiver.receive();
            let mut messages = messages.into_iter();
            match messages.next() {
                Some(Message::Hello { token, rank, host }) if token == self.token && rank < self.statuses.len() => {
                    self.statuses[rank].host = Some(host);
                    self.statuses[rank].closed = closed;
                    self.connections[rank] = Some((receiver, sender));
                    messages.for_each(|message| self.record(rank, message));
                }
                None if !closed && waited < HELLO => pending.push(PendingConnection { receiver, sender, waited }),
                _ => {}
            }
        }
        self.pending = pending;
    }

    /// Receives the ranks' messages. `passed` is the time since the previous call.
    fn receive(&mut self, passed: Duration) {
        for rank in 0..self.statuses.len() {
            self.statuses[rank].silent += passed;
            let Some((receiver, _)) = self.connections[rank].as_mut().filter(|_| !self.statuses[rank].closed) else {
                continue;
            };
            let (messages, closed) = receiver.receive();
            messages.into_iter().for_each(|message| self.record(rank, message));
            self.statuses[rank].closed = closed;
        }
    }

    fn record(&mut self, rank: usize, message: Message) {
        let row = &mut self.statuses[rank];
        row.silent = Duration::ZERO;
        match message {
            Message::Beat(beat) => row.beat = Some(beat),
            Message::Fault(fault) => row.fault = Some(fault),
            Message::LostMonitor => row.lost_monitor = true,
            Message::Goodbye => row.left = true,
            Message::Hello { .. } => {}
        }
    }

    fn send_all(&mut self, reply: &Reply) {
        for (_, sender) in self.connections.iter_mut().flatten() {
            let _ = sender.send(reply);
        }
    }

    /// Prints the root cause, sends the verdict to all ranks, and ends this process.
    fn end(&mut self, cause: &Cause) -> ! {
        let line = cause.line(&self.statuses, self.limits);
        last_words(&line, true);
        let alive = matches!(cause.problem, Problem::Failed(_));
        self.send_all(&Reply::Verdict(Verdict { rank: cause.rank, code: cause.code(), line: line.clone(), alive }));
        if cause.rank == 0 {
            end_process(cause.code());
        }
        // The connections stay open until the others have exited. A rank that has not read the verdict would otherwise report
        // that rank 0 is dead.
        let mut left = FAREWELL;
        while !left.is_zero() && (1..self.statuses.len()).any(|rank| !self.gone(rank)) {
            std::thread::sleep(POLL);
            left = left.saturating_sub(POLL);
            self.receive(POLL);
        }
        end_process(PEER_FAILED)
    }

    fn gone(&self, rank: usize) -> bool {
        self.statuses[rank].closed || self.connections[rank].is_none()
    }
}

/// Prepares a new connection: reads do not block.
fn open(stream: TcpStream) -> Option<PendingConnection> {
    stream.set_nonblocking(true).ok()?;
    let sender = Sender::new(stream.try_clone().ok()?).ok()?;
    Some(PendingConnection { receiver: Receiver::new(stream), sender, waited: Duration::ZERO })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn time_in_which_one_rank_was_suspected_does_not_count_against_another() {
        let cause = |rank, problem| Cause { rank, problem };
        let (second, mut suspicion) = (Duration::from_secs(1), Suspicion::default());
        let mut held = |cause: Option<Cause>| suspicion.held(cause.as_ref(), second).as_secs();
        let hangs = |rank| Some(cause(rank, Problem::Hangs(vec![])));
        assert_eq!((held(hangs(1)), held(hangs(1))), (1, 2));
        assert_eq!(held(Some(cause(1, Problem::Hangs(vec![0])))), 3, "whoever waits for it");
        assert_eq!((held(hangs(0)), held(Some(cause(0, Problem::Died)))), (1, 1));
        assert_eq!((held(hangs(0)), held(None), held(hangs(0))), (1, 1, 1));
    }

    #[test]
    fn a_connection_without_a_hello_is_dropped_in_time_and_ranks_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut monitor = Monitor {
            listener,
            token: 7,
            heartbeat: Duration::from_secs(1),
            limits: Limits { step: Duration::from_secs(45), setup: Duration::from_secs(600) },
            pending: Vec::new(),
            connections: vec![None],
            statuses: vec![RankStatus::default()],
        };
        let mut silent = TcpStream::connect(address).unwrap();
        let mut rank = Sender::new(TcpStream::connect(address).unwrap()).unwrap();
        while monitor.pending.len() < 2 {
            monitor.accept(Duration::ZERO);
        }
        rank.send(&Message::Hello { token: 7, rank: 0, host: "node".into() }).unwrap();
        while monitor.connections[0].is_none() {
            monitor.accept(Duration::ZERO);
        }
        monitor.accept(HELLO - POLL);
        assert_eq!(monitor.pending.len(), 1, "there is time left");
        monitor.accept(POLL);
        assert!(monitor.pending.is_empty() && monitor.connections[0].is_some());
        // Its descriptor is closed, so the other side reads the end of the stream.
        silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }
}
