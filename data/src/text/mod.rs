//! Text to tokens and back.

pub(crate) mod documents;
pub(crate) mod text_stream;
pub(crate) mod tokenize;
pub(crate) mod tokenizer;
