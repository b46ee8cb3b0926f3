//! Mistakes that are refused or told, and code that fails.

mod by_default;
mod changed;
mod left_out;
mod mistakes;
mod other_device;
mod panics;
mod traps;
mod twelve_mistakes;
