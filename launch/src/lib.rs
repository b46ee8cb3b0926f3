//! Finds out which rank of which world this process is, whatever started it.
//!
//! Start with [`RankEnv::detect`].

mod cores;
mod env;

pub use cores::{allowed_cores, host_threads, online_cores};
pub use env::{LaunchError, RankEnv};
