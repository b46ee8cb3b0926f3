#![doc = include_str!("../README.md")]

mod child;
mod cores;
mod env;
mod job;
mod leftovers;
mod mpirun;
mod processes;
mod ranks_below;
mod shared_memory;
pub mod signals;
mod state_folder;
mod strangers;
mod supervise;
pub mod watch;

pub use child::ONE_REQUEST;
pub use cores::{allowed_cores, binding_notice, host_threads, online_cores};
pub use env::{Launcher, RankEnv};
pub use job::{Container, ContainerRuntime, Job, Slurm, Starter};
pub use mpirun::{Mpirun, refused_as_root};
pub use state_folder::{StateFolder, give_state_folder, state_folder};
pub use supervise::{Ending, Supervised, supervise};
