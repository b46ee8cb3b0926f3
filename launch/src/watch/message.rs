//! The messages between ranks and the monitor: one JSON object per line.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::activity::Doing;

/// Proves that a connection belongs to this run. It is not printed.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(u64);

impl Token {
    /// A token that nobody can guess.
    pub fn random() -> Token {
        Token(RandomState::new().build_hasher().finish())
    }

    /// The token of a text from [`Token::to_text`].
    pub(super) fn parse(text: &str) -> Option<Token> {
        text.parse().ok().map(Token)
    }

    /// The token as text, for the ranks of this run only.
    pub(super) fn to_text(self) -> String {
        self.0.to_string()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// From a rank to the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The first message on a connection.
    Hello {
        /// The number that rank 0 sent to all ranks of this run.
        token: Token,
        /// The sender.
        rank: usize,
        /// The name of the rank's host.
        host: String,
        /// The rank's process there.
        process: u32,
    },
    /// The rank's progress.
    Beat(Beat),
    /// The rank has an error and cannot continue.
    Fault(Fault),
    /// The rank ends, for lack of messages from the monitor.
    LostMonitor,
    /// The clean end.
    Goodbye,
}

/// A rank's progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The activity of the rank's host.
    pub doing: Doing,
    /// Milliseconds without progress on the host or the device.
    pub quiet_ms: u64,
    /// The step under way on the device.
    pub step: Option<u64>,
    /// The region that began last.
    pub region: Option<String>,
    /// The transfer that began last, and the transfer's number.
    pub transfer: Option<(String, u64)>,
    /// The number of transfers begun on each communicator.
    pub begun: Vec<TransferCount>,
}

/// The number of transfers of one kind that a rank has begun. All participants count alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferCount {
    /// The communicator's name.
    pub communicator: String,
    /// World ranks of the communicator.
    pub ranks: Vec<usize>,
    /// Sender and receiver, by rank of the communicator. `None` for collectives.
    pub between: Option<(usize, usize)>,
    /// How many.
    pub count: u64,
}

/// An error that a rank reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The fault's exit code.
    pub code: i32,
    /// The fault, in words.
    pub error: String,
    /// Whether another rank's fault may have caused the error.
    pub follows: bool,
}

/// From the monitor to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The monitor is alive.
    Beat,
    /// The run ends.
    Verdict(Verdict),
}

/// Why a run ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The rank at fault.
    pub rank: usize,
    /// That rank's exit code.
    pub code: i32,
    /// The root cause in one line.
    pub line: String,
    /// Whether the rank at fault exits without help. It should exit first, so that its exit code is the one that the
    /// launcher sees.
    pub alive: bool,
    /// The rank that shows the threads of the rank at fault, and the process of that rank, if any can. Both are on one
    /// machine.
    pub shows: Option<(usize, u32)>,
}

/// The longest time for the operating system to accept a line.
const WRITING: Duration = Duration::from_secs(5);
/// The maximum length of a line, in bytes.
const LONGEST: usize = 1 << 20;
/// The maximum length of a line from a connection that has not proved yet to belong to this run. A hello is shorter.
const LONGEST_OF_STRANGER: usize = 1 << 10;

/// Writes lines.
pub struct Sender {
    stream: TcpStream,
    /// A line was written in part. Whatever follows would be read as its rest.
    broken: bool,
}

impl Sender {
    /// A sender on a connection that nobody else writes to.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(stream: TcpStream) -> std::io::Result<Sender> {
        stream.set_write_timeout(Some(WRITING))?;
        stream.set_nodelay(true)?;
        Ok(Sender { stream, broken: false })
    }

    /// Writes one message.
    ///
    /// # Errors
    /// Errors of the operating system. If a part of the line was written, the connection is closed.
    pub fn send<T: Serialize>(&mut self, message: &T) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        if self.broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut rest = &line[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(self.failed(rest.len() < line.len(), ErrorKind::WriteZero.into())),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(rest.len() < line.len(), error)),
            }
        }
        Ok(())
    }

    /// Notes that a line was not written, or only in part.
    fn failed(&mut self, in_part: bool, error: std::io::Error) -> std::io::Error {
        if in_part {
            self.broken = true;
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        error
    }
}

/// Reads lines on arrival.
pub struct Receiver {
    stream: TcpStream,
    /// The beginning of a line whose rest has not arrived. It has no line end.
    rest: Vec<u8>,
    /// The most bytes that `rest` may hold.
    longest: usize,
}

impl Receiver {
    /// A receiver on a connection to a process of this run. The connection does not block, or has a timeout.
    pub fn new(stream: TcpStream) -> Receiver {
        Receiver { stream, rest: Vec::new(), longest: LONGEST }
    }

    /// As [`Receiver::new`], on a connection that anybody may have made. It takes up to 1 KiB before the first whole line.
    pub fn of_stranger(stream: TcpStream) -> Receiver {
        Receiver { longest: LONGEST_OF_STRANGER, ..Receiver::new(stream) }
    }

    /// The other side has proved to belong to this run. Returns a sender to it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn trust(&mut self) -> std::io::Result<Sender> {
        self.longest = LONGEST;
        Sender::new(self.stream.try_clone()?)
    }

    /// The messages that have arrived, and whether the connection is closed, or must be: it is not one of this run.
    pub fn receive<T: DeserializeOwned>(&mut self) -> (Vec<T>, bool) {
        let mut buffer = [0; 16 << 10];
        let room = (self.longest + 1 - self.rest.len()).min(buffer.len());
        let before = self.rest.len();
        let closed = match self.stream.read(&mut buffer[..room]) {
            Ok(0) => true,
            Ok(count) => {
                self.rest.extend(&buffer[..count]);
                false
            }
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
        };
        let (mut messages, mut begin, mut searched) = (Vec::new(), 0, before);
        while let Some(at) = self.rest[searched..].iter().position(|&byte| byte == b'\n') {
            let end = searched + at;
            match serde_json::from_slice(&self.rest[begin..end]) {
                Ok(message) => messages.push(message),
                Err(_) => return (messages, true), // not a rank of this run
            }
            (begin, searched) = (end + 1, end + 1);
        }
        self.rest.drain(..begin);
        (messages, closed || self.rest.len() > self.longest)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Both ends of a connection. The receiver does not block.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        receiver.set_nonblocking(true).unwrap();
        (sender, receiver)
    }

    /// Receives until `enough`; all messages, and whether the connection is closed.
    fn receive_until(receiver: &mut Receiver, enough: impl Fn(&[Message], bool) -> bool) -> (Vec<Message>, bool) {
        let mut all = Vec::new();
        loop {
            let (messages, closed) = receiver.receive();
            all.extend(messages);
            if enough(&all, closed) {
                return (all, closed);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn lines_arrive_whole_however_they_are_cut() {
        let (mut sender, receiver) = connection();
        let mut receiver = Receiver::of_stranger(receiver);
        let line = |message: &Message| serde_json::to_string(message).unwrap() + "\n";
        let token = Token::random();
        let hello = Message::Hello { token, rank: 3, host: "node".into(), process: 1 };
        let error = "x".repeat(100_000);
        let fault = Message::Fault(Fault { code: 3, error, follows: false });
        let text = line(&hello) + &line(&Message::Goodbye);
        for byte in text.as_bytes() {
            sender.write_all(&[*byte]).unwrap();
        }
        let (messages, closed) = receive_until(&mut receiver, |all, _| all.len() == 2);
        assert_eq!((messages, closed), (vec![hello, Message::Goodbye], false));
        receiver.trust().unwrap();
        let two = line(&fault) + &line(&Message::LostMonitor);
        let sends = std::thread::spawn(move || sender.write_all(two.as_bytes()));
        let (messages, _) = receive_until(&mut receiver, |all, closed| closed || all.len() == 2);
        assert_eq!(messages, [fault, Message::LostMonitor], "longer than a read, and than a stranger's line");
        sends.join().unwrap().unwrap();
    }

    #[test]
    fn a_stranger_sends_a_kilobyte_and_no_more() {
        let (mut sender, receiver) = connection();
        let mut receiver = Receiver::of_stranger(receiver);
        sender.write_all(&[b' '; 16 << 10]).unwrap();
        let (messages, closed) = receive_until(&mut receiver, |_, closed| closed);
        assert!(messages.is_empty() && closed);
        assert!(receiver.rest.len() <= LONGEST_OF_STRANGER + 1, "{}", receiver.rest.len());
    }

    #[test]
    fn after_a_line_that_was_written_in_part_nothing_is_sent() {
        let (stream, receiver) = connection();
        stream.set_nonblocking(true).unwrap();
        let mut sender = Sender::new(stream).unwrap();
        let fault = Message::Fault(Fault { code: 3, error: "x".repeat(300_000), follows: false });
        // Nobody reads, so at some point the system takes a part of a line.
        let sent = (0..1000).take_while(|_| sender.send(&fault).is_ok()).count();
        let error = sender.send(&Message::Goodbye).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let mut receiver = Receiver::of_stranger(receiver);
        receiver.trust().unwrap();
        let (messages, _) = receive_until(&mut receiver, |_, closed| closed);
        assert!(sent < 1000 && messages == vec![fault; sent], "{} of {sent}", messages.len());
    }

    #[test]
    fn a_token_is_not_printed() {
        let token = Token::random();
        let hello = Message::Hello { token, rank: 0, host: String::new(), process: 1 };
        assert!(!format!("{hello:?}").contains(&token.to_text()));
        assert_eq!(Token::parse(&token.to_text()), Some(token));
        assert!(token != Token::random());
    }
}
