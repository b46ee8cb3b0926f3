//! How ranks divide the model, the batch and the sequences.

mod context;
pub mod layout;
mod parallel;

pub use context::has_documents;
pub(crate) use context::tokens_here;
pub use layout::data_ranks;
pub use parallel::{ParallelPlan, StateOnHost};
