//! A run: from a plan to its end.

pub mod accelerator;
pub mod folder;
mod host_memory;
pub mod outputs;
pub mod process_group;
pub mod same_settings;
pub mod set_up;
pub mod source;
pub mod trace;
mod train;

pub use train::train;
