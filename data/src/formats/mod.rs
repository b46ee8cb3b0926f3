//! Token files on disk: their formats, reading and writing.

pub mod llmc;
pub(crate) mod mapped;
pub(crate) mod megatron;
pub(crate) mod shards;
pub(crate) mod tokens;
