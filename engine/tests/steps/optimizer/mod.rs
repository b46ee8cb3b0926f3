//! Updates of parameters.

mod frozen;
mod moments;
pub mod muon;
mod parameter_groups;
pub mod rate_groups;
mod remainders;
mod skip_step;
