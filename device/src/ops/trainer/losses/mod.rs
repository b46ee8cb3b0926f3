//! Embeddings, and the losses of tokens and of pairs of answers.

mod embedding;
mod further_tokens;
mod loss;
mod loss_parallel;
mod pair_loss;
mod soft_cap;

pub use embedding::{Embedding, EmbeddingBackward};
pub use further_tokens::FurtherTokens;
pub use loss::{CrossEntropy, Mse, SumInto, ZLoss};
pub use loss_parallel::{CrossEntropyJoin, CrossEntropyPart, VocabPart};
pub use pair_loss::{MismatchedRewards, PairLoss, Preference};
pub use soft_cap::SoftCap;
pub(crate) use soft_cap::check_cap;
