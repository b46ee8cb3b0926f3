//! Operations as launches of our own kernels; each file has its twin in `kernels/`.

mod activation;
mod attention;
mod cache;
mod collective;
mod columns;
mod control;
mod custom;
mod dropout;
mod elementwise;
mod embedding;
mod experts;
pub(super) mod gemm_epilogue;
mod head_norm;
mod joint_norm;
mod loss;
mod loss_parallel;
mod muon;
mod norm;
mod optimizer;
mod progress_mark;
mod quantize;
mod quantize_blocks;
mod quantize_both;
mod quantize_columns;
mod quantize_counts;
mod reduce;
mod rotary;
mod run;
mod shape;
mod skip_step;
mod table;
mod transpose_fp8;

pub(crate) use norm::norm_parts;
pub(crate) use run::accept;
pub use run::{BLOCK_SCALES_CAPABILITY, FP8_CAPABILITY};
pub(super) use run::{prepare, run, scratch_bytes};
