//! The monitor: a thread on rank 0 that receives the reports of all ranks and ends the run when one is at fault.

use std::mem::{Discriminant, discriminant};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::decide::{Cause, Limits, Problem, RankStatus, decide, shows_threads};
use super::message::{Message, Receiver, Reply, Sender, Token, Verdict};
use super::ranks_file::RanksFile;
use super::threads::threads_of;
use super::{PEER_FAILED, WatchSettings, end_process, last_words};

/// The interval at which all connections are polled.
const POLL: Duration = Duration::from_millis(50);
/// How long a new connection may take to send its hello. A rank sends it at once; port scanners do not.
const HELLO: Duration = Duration::from_secs(10);
/// How many connections may be without a hello at a time.
const STRANGERS: usize = 64;
/// How long ranks may take to read the verdict and exit.
const FAREWELL: Duration = Duration::from_secs(2);

struct Monitor {
    /// Empty once all ranks have connected: nobody else has a reason to.
    listeners: Vec<TcpListener>,
    token: Token,
    limits: Limits,
    /// Connections without a hello so far, oldest first. At most [`STRANGERS`].
    strangers: Vec<Stranger>,
    connections: Vec<Option<(Receiver, Sender)>>,
    statuses: Vec<RankStatus>,
    file: Option<RanksFile>,
}

/// A connection that has not sent its hello, and its age.
struct Stranger {
    receiver: Receiver,
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

/// Starts the monitor's thread. It serves `ranks` ranks on `listeners` until all have reported their clean end, and then drops
/// `alive`.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(
    listeners: Vec<TcpListener>,
    token: Token,
    ranks: usize,
    settings: &WatchSettings,
    alive: mpsc::Sender<()>,
) -> std::io::Result<()> {
    listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
    let monitor = Monitor {
        listeners,
        token,
        limits: Limits { step: settings.timeout, setup: settings.setup_timeout, heartbeat: settings.heartbeat },
        strangers: Vec::new(),
        connections: (0..ranks).map(|_| None).collect(),
        statuses: vec![RankStatus::default(); ranks],
        file: settings.file.clone().map(RanksFile::start).transpose()?,
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
            // Time does not count against the ranks if this process was stopped in it, or its machine was asleep.
            let passed = last.elapsed().min(Duration::from_secs(1));
            last = Instant::now();
            self.accept(passed);
            self.receive(passed);
            silent += passed;
            if silent >= self.limits.heartbeat {
                silent = Duration::ZERO;
                self.send_all(&Reply::Beat);
                self.file.iter().for_each(|file| file.tell(&self.statuses));
            }
            let cause = decide(&self.statuses, self.limits, suspicion.rank());
            let held = suspicion.held(cause.as_ref(), passed);
            if let Some(cause) = cause.filter(|cause| held >= cause.problem.grace(self.limits)) {
                self.end(&cause);
            }
        }
        self.file.iter().for_each(|file| file.tell(&self.statuses));
    }

    /// Accepts new connections, and assigns those that have sent a hello to their rank. Drops those that sent none in time.
    /// When all ranks have connected, it stops listening. `passed` is the time since the previous call.
    fn accept(&mut self, passed: Duration) {
        for stranger in std::mem::take(&mut self.strangers) {
            self.hear(Stranger { waited: stranger.waited + passed, ..stranger });
        }
        for at in 0..self.listeners.len() {
            // However many come, the ranks that have connected are served between.
            for _ in 0..STRANGERS {
                let Ok((stream, _)) = self.listeners[at].accept() else { break };
                if stream.set_nonblocking(true).is_ok() {
                    self.hear(Stranger { receiver: Receiver::of_stranger(stream), waited: Duration::ZERO });
                }
            }
        }
        if self.connections.iter().all(Option::is_some) {
            self.listeners.clear();
            self.strangers.clear();
        }
    }

    /// Assigns a connection to its rank if it has sent a hello. Otherwise it stays a stranger, for some time. A new one
    /// takes the place of the oldest.
    fn hear(&mut self, mut stranger: Stranger) {
        let (messages, closed) = stranger.receiver.receive();
        let mut messages = messages.into_iter();
        match messages.next() {
            Some(Message::Hello { token, rank, host, process })
                if token == self.token && rank < self.statuses.len() =>
            {
                let Ok(sender) = stranger.receiver.trust() else { return };
                self.statuses[rank].host = Some(host);
                self.statuses[rank].process = process;
                self.statuses[rank].closed = closed;
                self.connections[rank] = Some((stranger.receiver, sender));
                messages.for_each(|message| self.record(rank, message));
            }
            None if !closed && stranger.waited < HELLO => {
                if self.strangers.len() == STRANGERS {
                    self.strangers.remove(0);
                }
                self.strangers.push(stranger);
            }
            _ => {}
        }
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
        self.file.iter().for_each(|file| file.tell(&self.statuses));
        let alive = matches!(cause.problem, Problem::Failed(_));
        let process = self.statuses[cause.rank].process;
        let shows = shows_threads(cause, &self.statuses, self.limits).map(|rank| (rank, process));
        let verdict = Verdict { rank: cause.rank, code: cause.code(), line, alive, shows };
        if shows.is_some_and(|(rank, _)| rank == 0) {
            last_words(&threads_of(cause.rank, process), true);
        }
        self.send_all(&Reply::Verdict(verdict));
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn time_in_which_one_rank_was_suspected_does_not_count_against_another() {
        let cause = |rank, problem| Cause { rank, problem };
        let (second, mut suspicion) = (Duration::from_secs(1), Suspicion::default());
        let mut held = |cause: Option<Cause>| suspicion.held(cause.as_ref(), second).as_secs();
        let hangs = |rank| Some(cause(rank, Problem::Hangs { waiting: vec![], others: vec![] }));
        assert_eq!((held(hangs(1)), held(hangs(1))), (1, 2));
        assert_eq!(
            held(Some(cause(1, Problem::Hangs { waiting: vec![0], others: vec![] }))),
            3,
            "whoever waits for it"
        );
        assert_eq!((held(hangs(0)), held(Some(cause(0, Problem::Died)))), (1, 1));
        assert_eq!((held(hangs(0)), held(None), held(hangs(0))), (1, 1, 1));
    }

    /// A monitor of so many ranks, its address and its token.
    fn monitor(ranks: usize) -> (Monitor, std::net::SocketAddr, Token) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, token) = (listener.local_addr().unwrap(), Token::random());
        let monitor = Monitor {
            listeners: vec![listener],
            token,
            limits: Limits {
                step: Duration::from_secs(45),
                setup: Duration::from_secs(600),
                heartbeat: Duration::from_secs(1),
            },
            strangers: Vec::new(),
            connections: (0..ranks).map(|_| None).collect(),
            statuses: vec![RankStatus::default(); ranks],
            file: None,
        };
        (monitor, address, token)
    }

    /// Whether the other side closes a connection.
    fn is_closed(stream: &mut TcpStream) -> bool {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A side that closes before it has read everything resets the connection.
        stream.read(&mut [0]).map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |read| read == 0)
    }

    fn accept_until(monitor: &mut Monitor, done: impl Fn(&Monitor) -> bool) {
        while !done(monitor) {
            monitor.accept(Duration::ZERO);
        }
    }

    #[test]
    fn a_connection_without_a_hello_is_dropped_in_time_and_ranks_stay() {
        let (mut monitor, address, token) = monitor(2);
        let mut silent = TcpStream::connect(address).unwrap();
        let mut rank = Sender::new(TcpStream::connect(address).unwrap()).unwrap();
        accept_until(&mut monitor, |monitor| monitor.strangers.len() == 2);
        rank.send(&Message::Hello { token, rank: 0, host: "node".into(), process: 1 }).unwrap();
        accept_until(&mut monitor, |monitor| monitor.connections[0].is_some());
        monitor.accept(HELLO - POLL);
        assert_eq!(monitor.strangers.len(), 1, "there is time left");
        monitor.accept(POLL);
        assert!(monitor.strangers.is_empty() && monitor.connections[0].is_some());
        assert!(is_closed(&mut silent));
    }

    #[test]
    fn strangers_keep_no_rank_out_and_cost_64_connections_at_most() {
        let (mut monitor, address, token) = monitor(1);
        let mut strangers: Vec<TcpStream> = Vec::new();
        for _ in 0..STRANGERS + 5 {
            strangers.push(TcpStream::connect(address).unwrap());
            strangers.last_mut().unwrap().set_nodelay(true).unwrap();
            monitor.accept(Duration::ZERO);
            assert!(monitor.strangers.len() <= STRANGERS);
        }
        accept_until(&mut monitor, |monitor| monitor.strangers.len() == STRANGERS);
        assert!(strangers[..5].iter_mut().all(is_closed), "the oldest made room");
        let mut wrong = Sender::new(TcpStream::connect(address).unwrap()).unwrap();
        wrong.send(&Message::Hello { token: Token::random(), rank: 0, host: "node".into(), process: 1 }).unwrap();
        let mut rank = Sender::new(TcpStream::connect(address).unwrap()).unwrap();
        rank.send(&Message::Hello { token, rank: 0, host: "node".into(), process: 1 }).unwrap();
        accept_until(&mut monitor, |monitor| monitor.connections[0].is_some());
        assert_eq!(monitor.statuses[0].host.as_deref(), Some("node"));
    }

    #[test]
    fn nobody_can_connect_once_all_ranks_have() {
        let (mut monitor, address, token) = monitor(2);
        let mut stranger = TcpStream::connect(address).unwrap();
        let ranks: Vec<Sender> = (0..2)
            .map(|rank| {
                let mut sender = Sender::new(TcpStream::connect(address).unwrap()).unwrap();
                sender.send(&Message::Hello { token, rank, host: "node".into(), process: 1 }).unwrap();
                sender
            })
            .collect();
        accept_until(&mut monitor, |monitor| monitor.connections.iter().all(Option::is_some));
        assert!(monitor.listeners.is_empty() && monitor.strangers.is_empty());
        assert!(is_closed(&mut stranger));
        assert!(TcpStream::connect(address).is_err());
        drop(ranks);
    }
}
