//! What is around the processes of a run: which rank of which world one is, whatever started it; a supervisor that starts a
//! run anew when it fails; and job files for clusters, which start that.
//!
//! Start with [`RankEnv::detect`], [`supervise`] and [`Job`].

mod cores;
mod env;
mod job;
pub mod signals;
mod supervise;
pub mod watch;

pub use cores::{allowed_cores, host_threads, online_cores};
pub use env::{LaunchError, RankEnv};
pub use job::{Job, Slurm, Starter};
pub use supervise::{Ending, ONE_REQUEST, supervise};
