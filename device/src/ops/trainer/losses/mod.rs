//! Embeddings, and the losses of tokens and of pairs of answers.

mod embedding;
mod further_tokens;
mod loss;
mod loss_parallel;
mod pair_loss;
mod soft_cap;

pub use embedding::*;
pub use further_tokens::*;
pub use loss::*;
pub use loss_parallel::*;
pub use pair_loss::*;
pub use soft_cap::*;
