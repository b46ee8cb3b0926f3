//! The other two ways to a graph: captures by hand, and graphed layers.

mod by_hand;
mod callables;
mod data_parallel;
pub mod double;
mod eight_bits;
mod forgotten;
mod hooks;
mod outputs;
