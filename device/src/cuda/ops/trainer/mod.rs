//! Operations of a trainer of transformers.

mod activation;
mod attention;
mod attention_parts;
mod cache;
mod codes;
mod control;
mod dropout;
mod embedding;
mod experts;
mod first_values;
mod further_tokens;
mod gemm;
pub(in crate::cuda) mod gemm_epilogue;
mod head_norm;
mod joint_norm;
mod latent;
mod loss;
mod loss_parallel;
mod muon;
mod norm;
mod optimizer;
mod pair_loss;
mod quantize;
mod quantize_blocks;
mod quantize_both;
mod quantize_columns;
mod quantize_counts;
mod quantize_source;
mod reduce;
mod rotary;
mod sinks;
mod skip_step;
mod soft_cap;
mod transpose_fp8;

pub(crate) use norm::norm_parts;
