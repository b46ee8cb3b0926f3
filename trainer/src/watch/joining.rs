//! A limit on how long ranks take to find each other. A rank that hangs before it has joined leaves the others waiting in
//! MPI's start, where nobody watches yet.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use launch::RankEnv;

use super::{WatchSettings, end_process, last_words};

/// By how much later the other ranks give up than rank 0, whose word is then the only one.
const PRECEDENCE: Duration = Duration::from_millis(500);

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
        if env.world_size == 1 || settings.heartbeat.is_zero() {
            return Ok(None);
        }
        let (rank, limit) = (env.rank, settings.setup_timeout);
        let patience = if rank == 0 { limit } else { limit + PRECEDENCE };
        let (_over, over) = channel();
        std::thread::Builder::new().name("joining".into()).spawn(move || {
            if over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                let seconds = limit.as_secs_f64();
                let line = format!(
                    "error on rank {rank}: the ranks have not all joined within {seconds} s, for one hangs before it has, \
                     or its node or the network is down (parallel.setup_timeout_seconds = {seconds})"
                );
                last_words(&line, true);
                end_process(3);
            }
        })?;
        Ok(Some(Joining { _over }))
    }
}
