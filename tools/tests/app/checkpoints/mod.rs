//! Checkpoints of runs, and disks that fail.

mod async_save;
mod best_checkpoint;
pub mod damage;
pub mod disk_shim;
mod earlier_format;
mod format;
mod full_disk;
mod kill;
mod memory_states;
mod resume;
