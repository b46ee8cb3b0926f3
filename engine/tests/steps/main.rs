//! The engine's promises, on small models: the same bits in every setting and layout, and the numbers of independent references.

#[path = "../parity/exchange.rs"]
mod exchange;
#[allow(dead_code)]
#[path = "../../examples/minimal.rs"]
mod minimal;
mod models;

mod block_gradients;
mod bound_list;
mod copied_state;
mod digests;
mod experts;
mod families;
mod fp8;
mod further;
mod graph_modules;
mod hooks;
mod lora;
mod minimal_example;
mod mlp_graph;
mod mlp_tiles;
mod optimizer;
mod parity;
mod passes;
mod ranks;
mod recompute;
mod recording_size;
mod rotary;
mod same_bits;
mod samples;
mod sync_debug;
mod verify;
mod z_loss;
