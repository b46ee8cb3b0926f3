//! The engine's promises, on small models: the same bits in every setting and layout, and the numbers of independent references.

#[path = "../parity/exchange.rs"]
mod exchange;
#[allow(dead_code)]
#[path = "../../examples/minimal.rs"]
mod minimal;
mod models;

mod answers;
mod beside;
mod block_gradients;
mod bound_list;
mod context;
mod copied_state;
mod digests;
mod distributed_optimizer;
mod expert_balance;
mod expert_capacity;
mod expert_fp8;
mod expert_modules;
mod expert_ranks;
mod experts;
mod families;
mod fp8;
mod fp8_counts;
mod fp8_gradients;
mod fp8_parity;
mod fp8_ranks;
mod frozen;
mod further;
mod grad_reduce;
mod graph_modules;
mod hooks;
mod kept_losses;
mod left_out;
mod lengths;
mod lora;
mod minimal_example;
mod mlp_graph;
mod mlp_tiles;
mod moments;
mod muon;
mod on_host;
mod one_sequence;
mod overlap;
mod packing;
mod pair_losses;
mod parameter_groups;
mod parity;
mod pipeline;
mod ranks;
mod rate_groups;
mod recompute;
mod recording_size;
mod remainders;
mod rotary;
mod same_bits;
mod skip_step;
mod sync_debug;
mod tensor_parallel;
mod verify;
mod z_loss;
mod zero_bubble;
