//! Files of text, and the content of such files: documents, records, questions.

mod documents;
mod json_array;
mod json_line;
mod longest;
mod parquet;
mod question;
mod records;
mod segment;
mod text_bytes;
mod text_file;
mod text_files;
mod unpacked;

pub(crate) use documents::{encode_files, in_parallel, read_files};
pub(crate) use json_line::JsonLine;
pub(crate) use question::Question;
pub(crate) use records::Records;
pub(crate) use segment::{Holds, Segment};
pub(crate) use text_bytes::unpacked_name;
pub(crate) use text_files::{TextFile, beside_tokens, text_files};
