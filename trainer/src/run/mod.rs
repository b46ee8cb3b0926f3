//! A run: from a plan to its end.

pub mod accelerator;
mod activations;
pub mod auto_scope;
mod cheaper;
pub mod consistency;
pub mod evaluate;
mod host_memory;
pub mod multiple_choice;
pub mod random_steps;
pub mod ranks;
mod references;
pub mod run_folder;
pub mod samples;
pub mod set_up;
pub mod source;
pub mod state_on_host;
pub mod trace;
mod train;
mod verify;

pub use train::train;
