//! Numbers of 8 and 4 bits: copies for products, and codes of weights.

mod codes;
mod quantize;
mod quantize_blocks;
mod quantize_both;
mod quantize_columns;
mod quantize_counts;
mod quantize_source;
mod transpose_fp8;
