//! Numbers of 8 and 4 bits: copies for products, and codes of weights.

mod codes;
mod quantize;
mod quantize_blocks;
mod quantize_counts;
mod transpose_fp8;

pub use codes::*;
pub use quantize::*;
pub(crate) use quantize_blocks::*;
pub use quantize_counts::*;
pub use transpose_fp8::*;
