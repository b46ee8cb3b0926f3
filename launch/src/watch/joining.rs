//! A limit on how long ranks take to find each other. A rank that hangs before it has joined leaves the others waiting in
//! MPI's start, where nobody watches yet.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{WatchSettings, end_process, last_words};
use crate::RankEnv;

/// By how much later rank 1 gives up than rank 0, and the others than rank 1: the launcher ends all once the first of them
/// has spoken, and that should be one, not all at once.
const PRECEDENCE: Duration = Duration::from_secs(5);

/// The wait for the other ranks; it is over when this is dropped.
pub struct Joining {
    _over: Sender<()>,
}

impl Joining {
    /// Begins to wait: if it is not over within the limit for set-up, this process ends with exit code 3. No limit for a
    /// rank alone, or without a watch.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(env: &RankEnv, settings: &WatchSettings) -> std::io::Result<Option<Joining>> {
        if settings.heartbeat.is_zero() {
            return Ok(None);
        }
        let (rank, seconds) = (env.rank, settings.setup_timeout.as_secs_f64());
        let line = format!(
            "error on rank {rank}: the ranks have not all joined within {seconds} s, for one hangs before it has, \
             or its node or the network is down (parallel.setup_timeout_seconds = {seconds})"
        );
        Joining::limit(env, settings.setup_timeout, line, 3)
    }

    /// As [`Joining::begin`], with a limit of its own, and what to say and the exit code when it is over.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn limit(env: &RankEnv, limit: Duration, line: String, code: i32) -> std::io::Result<Option<Joining>> {
        if env.world_size == 1 {
            return Ok(None);
        }
        let patience = limit + PRECEDENCE * env.rank.min(2) as u32;
        let (_over, over) = channel();
        std::thread::Builder::new().name("joining".into()).spawn(move || {
            if over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                last_words(&line, true);
                end_process(code);
            }
        })?;
        Ok(Some(Joining { _over }))
    }
}
