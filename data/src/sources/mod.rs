//! Sources of samples: files of tokens, or data that are generated here.

pub(crate) mod blend;
pub(crate) mod conversations;
pub(crate) mod corpus;
pub(crate) mod dataset;
pub(crate) mod document_ends;
pub(crate) mod length_order;
pub(crate) mod markov;
pub(crate) mod missing;
pub(crate) mod multiple_choice;
pub(crate) mod order;
mod packs;
mod permutation;
pub(crate) mod regression;
pub(crate) mod stored_conversations;
pub(crate) mod token_source;
