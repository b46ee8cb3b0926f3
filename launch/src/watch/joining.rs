//! A time limit for the start of all ranks. If a rank hangs before it has joined the others, they wait for it in MPI's
//! start, before the monitor exists.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{WatchSettings, end_process, last_words};
use crate::RankEnv;

/// Rank 1 gives up this much later than rank 0, and the others this much later than rank 1. So usually one rank prints the
/// line, and the launcher ends the others.
const PRECEDENCE: Duration = Duration::from_secs(5);

/// The name of the thread that waits. Other processes see by it that a rank waits for the others.
pub(crate) const THREAD: &str = "joining";

/// The wait for the other ranks. Dropping it ends the wait.
pub struct Joining {
    _over: Sender<()>,
}

impl Joining {
    /// Starts the wait. If it takes longer than the limit for set-up, this process ends with exit code 3. A single rank has no
    /// limit, and neither has a run without heartbeats.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn begin(env: &RankEnv, settings: &WatchSettings) -> std::io::Result<Option<Joining>> {
        if settings.heartbeat.is_zero() {
            return Ok(None);
        }
        let (rank, seconds) = (env.rank, settings.setup_timeout.as_secs_f64());
        let line = format!(
            "error on rank {rank}: the ranks have not all joined within {seconds} s: one hangs, \
             or its node or the network is down (parallel.setup_timeout_seconds = {seconds})"
        );
        Joining::limit(env, settings.setup_timeout, line, 3)
    }

    /// As [`Joining::begin`], with another limit, line and exit code.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn limit(env: &RankEnv, limit: Duration, line: String, code: i32) -> std::io::Result<Option<Joining>> {
        if env.world_size == 1 {
            return Ok(None);
        }
        let patience = limit + PRECEDENCE * env.rank.min(2) as u32;
        let (_over, over) = channel();
        std::thread::Builder::new().name(THREAD.into()).spawn(move || {
            if over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                last_words(&line, true);
                end_process(code);
            }
        })?;
        Ok(Some(Joining { _over }))
    }
}
