//! The command line, and each of its commands.

pub mod batches;
pub mod bench;
pub mod cli;
pub mod doctor;
mod execute;
mod interruption;
mod random;
pub mod sample;
pub mod supervise;
mod train;

pub use execute::execute;
pub use interruption::interruption;
