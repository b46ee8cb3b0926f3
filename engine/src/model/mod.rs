//! Models: their layers, and the parameters, memory and time that these take.
//!
//! - [`Architecture`] is a model before it has memory: the parameters to allocate, and how to build the layers. [`gpt`]
//!   and [`mlp`] make one from a shape.
//! - `block.rs` has a transformer's block. Models differ in its parts, in `attention/` and `feed_forward/`: each
//!   declares its parameters, builds itself, computes forward and backward, and tells its cost.
//! - [`Decoder`] runs a transformer forward only, one token at a time, with keys and values in a cache.

mod adapted;
mod adapter;
mod architecture;
mod attention;
mod block;
mod branch;
mod buffers;
mod builder;
mod cost;
mod decoder;
mod dropout;
mod embedding;
mod expert_loads;
mod feed_forward;
mod further;
mod gpt;
mod head;
mod hidden;
mod layer;
mod linear;
#[cfg(test)]
mod linear_parity;
mod lora;
mod loss_term;
mod mlp;
mod norm;
mod norm_sums;
mod own;
mod part;
mod position;
mod recompute;
mod sample_row;
mod saved;
mod shape;
mod tensor_parallel;
mod token_cost;
mod weight_input;
mod whole_samples;

pub use adapted::{AdaptedLayer, AdapterRows};
pub use architecture::{Architecture, Build, Chunk, ExpertBlocks, Model, Residual, StepTensors};
pub use decoder::{Cursor, Decoder};
pub use embedding::is_embedding;
pub use expert_loads::{ExpertLoads, SelectionBias};
pub use feed_forward::{BalanceGroup, BalanceLoss, Capacity, Experts, Keeps};
pub use gpt::{gpt, gpt_part, layer_modules};
pub use hidden::{Hidden, Samples};
pub use layer::{Layer, LossHead};
pub use lora::{Lora, LoraTarget, is_adapter};
pub use loss_term::{LossTerm, TermRole, TermSums};
pub use mlp::{MlpShape, mlp};
pub use own::{LossRows, OwnLayer, OwnLoss, OwnParam, OwnPart};
pub use position::{Position, RotaryTable, RotaryTables, Scaling, TokensHere};
pub use sample_row::{DocumentColumns, PairColumns, References, Restart, SampleRow};
pub use saved::Saved;
pub use shape::{AttentionKind, FeedForward, FurtherTokens, GptShape, Latent, NormPlacement, QkNorm, Windows};
pub use tensor_parallel::{ContextTransfers, TensorParallel};
