//! The stand-in for the threads of a host device in a build without the feature `host`. It has no values, so such a device
//! cannot be opened, and the code that needs one compiles and is never reached.

#![allow(unused_variables, reason = "nothing can call it")]

use std::convert::Infallible;

use crate::uncallable::uncallable;
use crate::{Error, Result};

/// The threads of a host device.
pub struct Pool(Infallible);

impl Pool {
    /// # Errors
    /// Always: there is no host device.
    pub(super) fn open(threads: usize) -> Result<Pool> {
        let fix = "build it with the feature `host` of the crates graph-manager and graph-manager-device";
        Err(Error::operation("device", format!("this program was built without the host device. Fix: {fix}")))
    }
}

uncallable! {
    Pool {
        /// Number of threads.
        pub fn threads(&self) -> usize;
        pub(super) fn on_all_threads(&self, work: impl Fn() + Sync);
        /// Calls `work(i, chunk)` for each chunk of `size` elements of `data`.
        pub fn for_each_chunk<T: Send>(
            &self, data: &mut [T], size: usize, work: impl Fn(usize, &mut [T]) + Send + Sync
        );
        /// Calls `work(i)` for every `i` below `count`, and returns the results in order.
        pub fn map<R: Send>(&self, count: usize, work: impl Fn(usize) -> R + Send + Sync) -> Vec<R>;
        /// As [`Pool::for_each_chunk`] over two slices at once.
        pub fn for_each_chunk_pair<A: Send, B: Send>(
            &self, a: (&mut [A], usize), b: (&mut [B], usize), work: impl Fn(usize, &mut [A], &mut [B]) + Send + Sync
        );
    }
}
