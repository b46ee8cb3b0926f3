//! The messages between ranks and the monitor: one JSON object per line.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::activity::Doing;

/// From a rank to the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The first message on a connection.
    Hello {
        /// The number that rank 0 sent to all ranks of this run.
        token: u64,
        /// The sender.
        rank: usize,
        /// The name of its host.
        host: String,
    },
    /// The rank's progress.
    Beat(Beat),
    /// The rank has an error and cannot continue.
    Fault(Fault),
    /// The rank ends, because it got no message from the monitor for too long.
    LostMonitor,
    /// The clean end.
    Goodbye,
}

/// A rank's progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// What its host is doing.
    pub doing: Doing,
    /// Milliseconds without progress on the host or the device.
    pub quiet_ms: u64,
    /// The step under way on the device.
    pub step: Option<u64>,
    /// The region that began last.
    pub region: Option<String>,
    /// The transfer that began last, and its number.
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
    /// The exit code for it.
    pub code: i32,
    /// What went wrong.
    pub error: String,
    /// Another rank's fault may have caused it.
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
    /// The rank at fault exits by itself. It should exit first, so that its exit code is the one that the launcher sees.
    pub alive: bool,
}

/// The longest time for the operating system to accept a line.
const WRITING: Duration = Duration::from_secs(5);
/// The maximum length of a line, in bytes.
const LONGEST: usize = 1 << 20;

/// Writes lines.
pub struct Sender(TcpStream);

impl Sender {
    /// A sender on a connection that nobody else writes to.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn new(stream: TcpStream) -> std::io::Result<Sender> {
        stream.set_write_timeout(Some(WRITING))?;
        stream.set_nodelay(true)?;
        Ok(Sender(stream))
    }

    /// Writes one message.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn send<T: Serialize>(&mut self, message: &T) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Reads lines as they arrive.
pub struct Receiver {
    stream: TcpStream,
    /// The beginning of a line whose rest has not arrived.
    rest: Vec<u8>,
}

impl Receiver {
    /// A receiver on a connection that does not block or has a timeout.
    pub fn new(stream: TcpStream) -> Receiver {
        Receiver { stream, rest: Vec::new() }
    }

    /// The messages that have arrived, and whether the connection is closed.
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
                Err(_) => return (messages, true), // not a rank of this run
            }
        }
        (messages, closed)
    }
}
