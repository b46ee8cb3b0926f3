//! Signals that ask a run to end.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use common::Stop;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

use crate::ONE_REQUEST;

/// Handles signals from now on. SIGTERM, SIGINT and SIGUSR1 are requests to end. A second SIGTERM or SIGINT ends the process
/// at once, with exit code 128 + its number. SIGUSR1 is among them because mpirun passes it on to the ranks; on SIGTERM mpirun
/// ends the ranks itself. A supervisor signals the ranks too, and mpirun may be late: a second SIGUSR1 says nothing new.
///
/// Writing beyond the limit on file sizes (SIGXFSZ) is from now on an error of the write, as on a full disk, and does not end
/// the process.
///
/// # Errors
/// An error of the operating system.
pub fn listen() -> std::io::Result<Stop> {
    let asking = [SIGTERM, SIGINT, SIGUSR1];
    asking.into_iter().for_each(forget_handler);
    let (stop, mut signals) = (Stop::default(), Signals::new(asking)?);
    let theirs = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut before: Option<(i32, Instant)> = None;
        for signal in signals.forever() {
            if signal == SIGUSR1 && before.is_some() {
                continue;
            }
            let another = before.is_some_and(|(first, at)| first != signal || at.elapsed() >= ONE_REQUEST);
            if another || !theirs.is_heeded() {
                low_level::exit(128 + signal);
            }
            before.get_or_insert((signal, Instant::now()));
            theirs.ask();
        }
    })?;
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(stop)
}

/// Removes the handler of a signal. `signal-hook` would call a handler that a library installed before its own: MPI may load
/// OpenCL to find devices, OpenCL loads LLVM, and LLVM's handler ends the process.
fn forget_handler(signal: i32) {
    // SAFETY: the default action runs no code of ours, and the signals are valid.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    static THEIRS: AtomicBool = AtomicBool::new(false);

    extern "C" fn theirs(_: i32) {
        THEIRS.store(true, Ordering::Relaxed);
    }

    #[test]
    fn a_handler_that_a_library_installed_does_not_run_and_a_request_may_come_twice() {
        // SAFETY: the handler stores to an atomic: that is allowed in a handler.
        unsafe { libc::signal(SIGUSR1, theirs as extern "C" fn(i32) as libc::sighandler_t) };
        let stop = listen().unwrap();
        stop.heed();
        low_level::raise(SIGUSR1).unwrap();
        while !stop.is_asked() {
            std::thread::yield_now();
        }
        assert!(!THEIRS.load(Ordering::Relaxed));
        // As mpirun does that passes a request on late: this process goes on.
        std::thread::sleep(ONE_REQUEST);
        low_level::raise(SIGUSR1).unwrap();
        std::thread::sleep(ONE_REQUEST / 10);
        assert!(stop.is_asked());
    }
}
