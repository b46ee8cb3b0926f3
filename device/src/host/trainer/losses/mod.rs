//! Embeddings, and the losses of tokens and of pairs of answers.

mod embedding;
mod further_tokens;
mod loss;
mod loss_parallel;
mod pair_loss;
mod soft_cap;

pub(crate) use loss::sum_f64;
pub(crate) use soft_cap::{Bound, Capped, Unbounded, with_bound};
