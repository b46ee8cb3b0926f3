//! The tokens of a microbatch: samples in a row, positions, and the share of a rank.

mod hidden;
mod position;
mod sample_row;
mod whole_samples;

pub use hidden::{Hidden, Samples};
pub use position::{Position, RotaryTable, RotaryTables, Scaling, TokensHere};
pub use sample_row::{DocumentColumns, PairColumns, References, Restart, SampleRow};
pub(crate) use whole_samples::WholeSamples;
