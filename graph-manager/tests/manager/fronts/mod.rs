//! Captures by hand, and graphed layers: the ways to a graph beside a manager of steps.

mod by_hand;
mod callables;
mod data_parallel;
pub mod double;
mod eight_bits;
mod forgotten;
mod hooks;
mod outputs;
