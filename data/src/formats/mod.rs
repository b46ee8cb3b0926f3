//! Token files on disk: their formats, reading and writing.

pub(crate) mod data_file;
pub mod llmc;
pub(crate) mod megatron;
pub(crate) mod shards;
pub(crate) mod token_file;
pub(crate) mod tokens;
