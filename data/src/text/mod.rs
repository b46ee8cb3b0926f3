//! Text to tokens and back.

pub(crate) mod documents;
pub(crate) mod normalizer;
pub(crate) mod text_file;
pub(crate) mod text_stream;
pub(crate) mod tokenize;
pub(crate) mod tokenizer;
