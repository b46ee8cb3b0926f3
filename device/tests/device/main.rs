//! The device's promises on the host: capture rules, the checker, every operation against an independent reference. And
//! that the kernels compile for every supported GPU.

mod common;

mod adopted;
mod capture_rules;
mod checker;
mod copies;
mod custom;
mod custom_call;
mod custom_mapped;
mod extremes;
mod kernels_compile;
mod op_values;
mod ops_attention;
mod ops_cache;
mod ops_dense;
mod ops_dropout;
mod ops_embedding;
mod ops_experts_gemm;
mod ops_experts_glu;
mod ops_experts_limit;
mod ops_experts_load;
mod ops_experts_route;
mod ops_experts_rows;
mod ops_first_values;
mod ops_frozen;
mod ops_gemm_tf32;
mod ops_head_norm;
mod ops_joint_norm;
mod ops_muon;
mod ops_norm;
mod ops_optimizer;
mod ops_parallel;
mod ops_quantize;
mod ops_quantize_blocks;
mod ops_quantize_counts;
mod ops_quantize_gemm;
mod ops_scales;
mod ops_skip_step;
mod ops_transpose_fp8;
mod peer_rounds;
mod peers_on_host;
mod quantize_reference;
mod recording;
mod sync_debug;
mod unbound;
