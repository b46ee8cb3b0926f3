//! What ranks and the monitor say to each other: a JSON object a line.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::activity::Doing;

/// From a rank to the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The first thing said on a connection.
    Hello {
        /// What rank 0 told all ranks of this run.
        token: u64,
        /// Who speaks.
        rank: usize,
        /// The name of its host.
        host: String,
    },
    /// How far it has come.
    Beat(Beat),
    /// It cannot go on.
    Fault(Fault),
    /// It has not heard of the monitor for too long, and ends.
    Forsaken,
    /// It is done.
    Goodbye,
}

/// How far a rank has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// What its host does.
    pub doing: Doing,
    /// Milliseconds without any sign of progress, on the host or the device.
    pub quiet_ms: u64,
    /// The step under way on the device.
    pub step: Option<u64>,
    /// The region begun last.
    pub region: Option<String>,
    /// The transfer begun last, and its number.
    pub transfer: Option<(String, u64)>,
    /// How many transfers it has begun in each order that several ranks keep.
    pub begun: Vec<Begun>,
}

/// Transfers of one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// The communicator's name.
    pub communicator: String,
    /// World ranks that take part.
    pub ranks: Vec<usize>,
    /// Sender and receiver, of messages.
    pub between: Option<(usize, usize)>,
    /// How many have begun.
    pub count: u64,
}

/// A rank's own error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The exit code it asks for.
    pub code: i32,
    /// What went wrong.
    pub error: String,
    /// Another rank's fault may be behind it.
    pub follows: bool,
}

/// From the monitor to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The monitor is there.
    Beat,
    /// The run ends.
    Verdict(Verdict),
}

/// Why a run ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whose fault it is.
    pub rank: usize,
    /// That rank's exit code.
    pub code: i32,
    /// The root cause in one line.
    pub line: String,
    /// The rank at fault ends itself, and its exit code should be seen first.
    pub alive: bool,
}

/// The longest a line may take to be taken by the other side's system.
const WRITING: Duration = Duration::from_secs(5);
/// No line is longer, but for an error's text.
const LONGEST: usize = 1 << 20;

/// Writes lines.
pub struct Sender(TcpStream);

impl Sender {
    /// On a connection that nobody else writes to.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn new(stream: TcpStream) -> std::io::Result<Sender> {
        stream.set_write_timeout(Some(WRITING))?;
        stream.set_nodelay(true)?;
        Ok(Sender(stream))
    }

    /// Writes one.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn send<T: Serialize>(&mut self, message: &T) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Reads lines as they come.
pub struct Receiver {
    stream: TcpStream,
    /// What came of a line that is not complete.
    rest: Vec<u8>,
}

impl Receiver {
    /// On a connection that either does not block or has a timeout.
    pub fn new(stream: TcpStream) -> Receiver {
        Receiver { stream, rest: Vec::new() }
    }

    /// The messages that have come; the last ones before the connection closed, if it has, and whether it has.
    pub fn receive<T: DeserializeOwned>(&mut self) -> (Vec<T>, bool) {
        let mut buffer = [0; 16 << 10];
        let closed = match self.stream.read(&mut buffer) {
            Ok(0) => true,
            Ok(count) => {
                self.rest.extend(&buffer[..count]);
                self.rest.len() > LONGEST
            }
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
        };
        let mut messages = Vec::new();
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(message) => messages.push(message),
                Err(_) => return (messages, true), // not one of us
            }
        }
        (messages, closed)
    }
}
