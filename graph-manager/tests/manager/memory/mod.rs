//! The memory of steps.

mod buffer_uses;
mod planning;
mod protected;
