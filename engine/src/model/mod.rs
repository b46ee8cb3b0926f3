//! Models: their layers, and the parameters, memory and time that these take.
//!
//! - [`Architecture`] is a model before it has memory: the parameters to allocate, and how to build the layers. [`gpt`]
//!   and [`mlp`] make one from a shape.
//! - `gpt/block.rs` has a transformer's block. Models differ in its parts, in `attention/` and `feed_forward/`: each
//!   declares its parameters, builds itself, computes forward and backward, and tells its cost.
//! - [`Decoder`] runs a transformer forward only, one token at a time, with keys and values in a cache.

mod architecture;
mod attention;
mod buffers;
mod builder;
mod dropout;
mod expert_loads;
mod feed_forward;
mod gpt;
mod layer;
mod linear;
mod loss_term;
mod mlp;
mod norm;
mod own;
mod part;
mod sequence;
mod tensor_parallel;
mod token_cost;

pub use crate::microbatch::adds_to_gradients;
pub use architecture::{Architecture, Build, Chunk, ExpertBlocks, Model, Residual, StepTensors};
pub use expert_loads::{ExpertLoads, SelectionBias};
pub use feed_forward::{BalanceGroup, BalanceLoss, Capacity, Experts, Keeps};
pub use gpt::{
    AttentionKind, Cursor, Decoder, FeedForward, FurtherTokens, GptShape, Latent, NormPlacement, QkNorm, Windows, gpt,
    gpt_part, is_embedding, layer_modules,
};
pub use layer::{Layer, LossHead, Saved};
pub use linear::{AdaptedLayer, AdapterRows, Lora, LoraTarget, is_adapter};
pub use loss_term::{LossTerm, TermRole, TermSums};
pub use mlp::{MlpShape, mlp};
pub use own::{LossRows, OwnLayer, OwnLoss, OwnParam, OwnPart};
pub use sequence::{
    DocumentColumns, Hidden, PairColumns, Position, References, Restart, RotaryTable, RotaryTables, SampleRow, Samples,
    Scaling, TokensHere,
};
pub use tensor_parallel::{ContextTransfers, TensorParallel};
