//! The request to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to end this process, shared by whoever makes the request (a signal handler) and whoever looks for requests
/// (a loop).
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    heeded: Arc<AtomicBool>,
}

impl Stop {
    /// Says that a loop looks for the request from now on. Before, a signal ends the process at once.
    pub fn heed(&self) {
        self.heeded.store(true, Ordering::Relaxed);
    }

    /// Whether a loop looks for the request.
    pub fn is_heeded(&self) -> bool {
        self.heeded.load(Ordering::Relaxed)
    }

    /// Makes the request.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether the request was made.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}
