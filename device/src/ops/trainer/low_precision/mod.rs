//! Numbers of 8 and 4 bits: copies for products, and codes of weights.

mod codes;
mod quantize;
mod quantize_blocks;
mod quantize_counts;
mod transpose_fp8;

pub use codes::{CODE_BLOCK, CodeForm, CodedValues, CodesOfValues};
pub use quantize::{Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales};
pub(crate) use quantize_blocks::BLOCK;
pub use quantize_counts::{CountQuantized, QuantizeCounts, SumCounts};
pub use transpose_fp8::TransposeFp8;
