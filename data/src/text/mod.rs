//! Text to tokens and back.

pub(crate) mod bpe_training;
pub(crate) mod conversation;
pub(crate) mod copied_file;
pub(crate) mod files;
mod memory;
pub(crate) mod tokenize;
pub(crate) mod tokenizer;
pub(crate) mod watched;
