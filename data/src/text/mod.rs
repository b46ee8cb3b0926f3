//! Text to tokens and back.

pub(crate) mod chat_template;
pub(crate) mod conversation;
pub(crate) mod conversation_files;
pub(crate) mod copied_file;
pub(crate) mod documents;
pub(crate) mod expression;
pub(crate) mod json_line;
pub(crate) mod longest;
pub(crate) mod normalizer;
pub(crate) mod parquet_check;
pub(crate) mod parquet_rows;
pub(crate) mod pre_tokenizer;
pub(crate) mod python_json;
pub(crate) mod question;
pub(crate) mod template_engine;
pub(crate) mod template_filters;
pub(crate) mod text_bytes;
pub(crate) mod text_file;
pub(crate) mod text_files;
pub(crate) mod text_stream;
pub(crate) mod thrift;
pub(crate) mod tokenize;
pub(crate) mod tokenizer;
pub(crate) mod tokenizer_copy;
pub(crate) mod unpacked;
pub(crate) mod watched;
