//! Signals that ask a run to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;

/// From now on SIGTERM, SIGINT and SIGUSR1 raise the returned flag, and a second one ends the process at once with
/// 128 + its number. SIGUSR1 is there because mpirun passes it on, where it answers SIGTERM by ending all ranks itself.
///
/// A file beyond the limit on file sizes is from now on an error of the write, as a full disk is, and not the end of the
/// process.
///
/// # Errors
/// What the operating system said.
pub fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGUSR1] {
        // In this order the first signal finds the flag down and only raises it.
        flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())?;
        flag::register(signal, stop.clone())?;
    }
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(stop)
}
