//! Two ranks: this process, and one that it starts. A socket joins them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use crate::AnyResult;

const SECOND: &str = "second-rank";

/// The other rank, as one of them sees it.
pub struct Other {
    pub socket: UnixStream,
    /// The process of rank 1, on rank 0.
    process: Option<Child>,
}

impl Other {
    /// Waits for the end of rank 1.
    pub fn wait(self) -> AnyResult<()> {
        let Some(mut process) = self.process else { return Ok(()) };
        let status = process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("rank 1 failed: {status}").into()) }
    }
}

/// This process's rank, and the other one. Rank 0 starts rank 1 with its own arguments and one more; the socket is rank
/// 1's standard input.
pub fn join() -> AnyResult<(usize, Other)> {
    if std::env::args().any(|argument| argument == SECOND) {
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        return Ok((1, Other { socket, process: None }));
    }
    let (socket, of_rank_1) = UnixStream::pair()?;
    let process = Command::new(std::env::current_exe()?)
        .args(std::env::args().skip(1))
        .arg(SECOND)
        .stdin(Stdio::from(OwnedFd::from(of_rank_1)))
        .spawn()?;
    Ok((0, Other { socket, process: Some(process) }))
}
