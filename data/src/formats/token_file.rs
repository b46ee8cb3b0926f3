//! A file of tokens in any known format.

use std::path::Path;

use common::UserError;

use crate::config::RawTokens;
use crate::formats::data_file::DataFile;
use crate::formats::tokens::{Storage, TokenType, Tokens};
use crate::formats::{llmc, megatron};
use crate::found::unreadable;

/// Opens a `.bin` file of any known format.
pub(crate) fn token_file(path: &Path, raw_tokens: RawTokens) -> Result<Tokens, UserError> {
    let index = path.with_extension("idx");
    if index.exists() {
        return megatron::open(path, &index);
    }
    let name = path.display().to_string();
    let file = DataFile::open(path).map_err(|error| unreadable(&name, &error))?;
    let length = file.len();
    let mut begin = vec![0; length.min(llmc::HEADER_BYTES as u64) as usize];
    file.read(&mut begin, 0).map_err(|error| unreadable(&name, &error))?;
    let wrong = |what: &str, rule: &str, fix: &str| Err(UserError::new(format!("{name} {what}"), rule, fix));
    if length == 0 {
        return wrong("is empty", "a token file contains tokens", "write it again");
    }
    if let Some(llmc::Header { kind, len, largest }) = llmc::read_header(&name, &begin, length)? {
        return Ok(Tokens { name, storage: Storage::File(file), kind, offset: llmc::HEADER_BYTES, len, largest });
    }
    let kind = match raw_tokens {
        RawTokens::U16 => TokenType::U16,
        RawTokens::U32 => TokenType::U32,
        RawTokens::None => {
            return wrong(
                "has no .idx file beside it, and does not start with the magic number 20240520 or 20240801",
                "a .bin is a token file of llm.c or Megatron, or raw tokens if data.raw_tokens is set",
                "for nanoGPT files set data.raw_tokens = \"u16\" (--raw-tokens u16)",
            );
        }
    };
    if !length.is_multiple_of(kind.size() as u64) {
        let what = format!("has {length} bytes");
        return wrong(&what, &format!("tokens have {} bytes each", kind.size()), "copy it completely");
    }
    let len = length / kind.size() as u64;
    Ok(Tokens { name, storage: Storage::File(file), kind, offset: 0, len, largest: None })
}
