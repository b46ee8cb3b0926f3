//! The monitor: a thread on rank 0 that hears all ranks and ends the run when one is at fault.

use std::mem::{Discriminant, discriminant};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::decide::{Cause, Kind, Limits, Row, decide};
use super::message::{Message, Receiver, Reply, Sender, Verdict};
use super::{PEER_FAILED, WatchSettings, end_process, last_words};

/// Between two looks at all connections.
const TICK: Duration = Duration::from_millis(50);
/// For who connects to say hello, which a rank does at once: who scans ports, or knocks by mistake, is shown out.
const HELLO: Duration = Duration::from_secs(30);
/// For ranks to take the verdict and go.
const FAREWELL: Duration = Duration::from_secs(2);

struct Monitor {
    listener: TcpListener,
    token: u64,
    heartbeat: Duration,
    limits: Limits,
    /// Connections whose hello has not come.
    strangers: Vec<Stranger>,
    connections: Vec<Option<(Receiver, Sender)>>,
    rows: Vec<Row>,
}

/// A connection, and how long it has been there.
struct Stranger {
    receiver: Receiver,
    sender: Sender,
    waited: Duration,
}

/// A cause that is not believed yet.
#[derive(Default)]
struct Suspicion {
    of: Option<(usize, Discriminant<Kind>)>,
    held: Duration,
}

impl Suspicion {
    fn rank(&self) -> Option<usize> {
        self.of.map(|(rank, _)| rank)
    }

    /// For how long it has been this cause, a look after the last one that long ago; of another rank, or another of its
    /// kind, it begins anew.
    fn held(&mut self, cause: Option<&Cause>, passed: Duration) -> Duration {
        let of = cause.map(|cause| (cause.rank, discriminant(&cause.kind)));
        if of != self.of {
            *self = Suspicion { of, held: Duration::ZERO };
        }
        self.held += passed;
        self.held
    }
}

/// Hears `ranks` ranks on `listener` until all have said goodbye; `alive` is dropped then.
///
/// # Errors
/// No thread can be started.
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
        strangers: Vec::new(),
        connections: (0..ranks).map(|_| None).collect(),
        rows: vec![Row::default(); ranks],
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
        while !self.rows.iter().all(|row| row.left) {
            std::thread::sleep(TICK);
            // Time in which this process itself was stopped, or its machine asleep, does not count against others.
            let passed = last.elapsed().min(Duration::from_secs(1));
            last = Instant::now();
            self.welcome(passed);
            self.hear(passed);
            silent += passed;
            if silent >= self.heartbeat {
                silent = Duration::ZERO;
                self.tell(&Reply::Beat);
            }
            let cause = decide(&self.rows, self.limits, suspicion.rank());
            let held = suspicion.held(cause.as_ref(), passed);
            if let Some(cause) = cause.filter(|cause| held >= cause.kind.grace(self.heartbeat)) {
                self.end(&cause);
            }
        }
    }

    /// Takes new connections, and those that have said who they are; drops those that have not in all the time there is.
    fn welcome(&mut self, passed: Duration) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.strangers.extend(open(stream));
        }
        let mut strangers = Vec::new();
        for Stranger { mut receiver, sender, waited } in std::mem::take(&mut self.strangers) {
            let waited = waited + passed;
            let (messages, closed) = receiver.receive();
            let mut messages = messages.into_iter();
            match messages.next() {
                Some(Message::Hello { token, rank, host }) if token == self.token && rank < self.rows.len() => {
                    self.rows[rank].host = Some(host);
                    self.rows[rank].closed = closed;
                    self.connections[rank] = Some((receiver, sender));
                    messages.for_each(|message| self.take(rank, message));
                }
                None if !closed && waited < HELLO => strangers.push(Stranger { receiver, sender, waited }),
                _ => {}
            }
        }
        self.strangers = strangers;
    }

    /// Takes what ranks have said in the time that passed.
    fn hear(&mut self, passed: Duration) {
        for rank in 0..self.rows.len() {
            self.rows[rank].silent += passed;
            let Some((receiver, _)) = self.connections[rank].as_mut().filter(|_| !self.rows[rank].closed) else {
                continue;
            };
            let (messages, closed) = receiver.receive();
            messages.into_iter().for_each(|message| self.take(rank, message));
            self.rows[rank].closed = closed;
        }
    }

    fn take(&mut self, rank: usize, message: Message) {
        let row = &mut self.rows[rank];
        row.silent = Duration::ZERO;
        match message {
            Message::Beat(beat) => row.beat = Some(beat),
            Message::Fault(fault) => row.fault = Some(fault),
            Message::Forsaken => row.forsaken = true,
            Message::Goodbye => row.left = true,
            Message::Hello { .. } => {}
        }
    }

    fn tell(&mut self, reply: &Reply) {
        for (_, sender) in self.connections.iter_mut().flatten() {
            let _ = sender.send(reply);
        }
    }

    /// Prints the root cause, tells all ranks, and ends this one.
    fn end(&mut self, cause: &Cause) -> ! {
        let line = cause.line(&self.rows, self.limits);
        last_words(&line, true);
        let alive = matches!(cause.kind, Kind::Failed(_));
        self.tell(&Reply::Verdict(Verdict { rank: cause.rank, code: cause.code(), line: line.clone(), alive }));
        if cause.rank == 0 {
            end_process(cause.code());
        }
        // The connections stay until the others have gone: who has not read the verdict could take rank 0 for dead.
        let mut left = FAREWELL;
        while !left.is_zero() && (1..self.rows.len()).any(|rank| !self.gone(rank)) {
            std::thread::sleep(TICK);
            left = left.saturating_sub(TICK);
            self.hear(TICK);
        }
        end_process(PEER_FAILED)
    }

    fn gone(&self, rank: usize) -> bool {
        self.rows[rank].closed || self.connections[rank].is_none()
    }
}

/// A connection that does not block.
fn open(stream: TcpStream) -> Option<Stranger> {
    stream.set_nonblocking(true).ok()?;
    let sender = Sender::new(stream.try_clone().ok()?).ok()?;
    Some(Stranger { receiver: Receiver::new(stream), sender, waited: Duration::ZERO })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn time_in_which_one_rank_was_suspected_does_not_count_against_another() {
        let cause = |rank, kind| Cause { rank, kind };
        let (second, mut suspicion) = (Duration::from_secs(1), Suspicion::default());
        let mut held = |cause: Option<Cause>| suspicion.held(cause.as_ref(), second).as_secs();
        let hangs = |rank| Some(cause(rank, Kind::Hangs(vec![])));
        assert_eq!((held(hangs(1)), held(hangs(1))), (1, 2));
        assert_eq!(held(Some(cause(1, Kind::Hangs(vec![0])))), 3, "whoever waits for it");
        assert_eq!((held(hangs(0)), held(Some(cause(0, Kind::Died)))), (1, 1));
        assert_eq!((held(hangs(0)), held(None), held(hangs(0))), (1, 1, 1));
    }

    #[test]
    fn who_does_not_say_hello_in_time_is_shown_out_and_ranks_that_do_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut monitor = Monitor {
            listener,
            token: 7,
            heartbeat: Duration::from_secs(1),
            limits: Limits { step: Duration::from_secs(45), setup: Duration::from_secs(600) },
            strangers: Vec::new(),
            connections: vec![None],
            rows: vec![Row::default()],
        };
        let mut silent = TcpStream::connect(address).unwrap();
        let mut rank = Sender::new(TcpStream::connect(address).unwrap()).unwrap();
        while monitor.strangers.len() < 2 {
            monitor.welcome(Duration::ZERO);
        }
        rank.send(&Message::Hello { token: 7, rank: 0, host: "node".into() }).unwrap();
        while monitor.connections[0].is_none() {
            monitor.welcome(Duration::ZERO);
        }
        monitor.welcome(HELLO - TICK);
        assert_eq!(monitor.strangers.len(), 1, "there is time left");
        monitor.welcome(TICK);
        assert!(monitor.strangers.is_empty() && monitor.connections[0].is_some());
        // Its descriptor is closed: the other side reads the end.
        silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }
}
