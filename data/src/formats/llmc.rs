//! Token files of llm.c. `trainer tokenize` writes the same format.
//!
//! The header is 256 little-endian 32-bit integers: magic, version, number of tokens, then zeros. The tokens follow. Magic
//! 20240520 with version 1 means 16-bit tokens, magic 20240801 with version 7 means 32-bit ones (llm.c,
//! `dev/data/data_common.py`). Other readers look at these three integers only. Files written here have their largest
//! token plus one in the fourth integer, so that a reader need not search for it.

use common::UserError;

use crate::formats::tokens::TokenType;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 1024;
/// Most tokens of a file: the header counts them in a signed 32-bit integer.
pub const MAX_TOKENS: u64 = i32::MAX as u64;

/// Magic, version and type of the two kinds of file.
const KINDS: [(u32, u32, TokenType); 2] = [(20240520, 1, TokenType::U16), (20240801, 7, TokenType::U32)];

/// The header of a file of `len` tokens, none above `largest`.
///
/// # Panics
/// If the format does not have `kind`. It has all that [`TokenType::for_vocab`] returns.
pub(crate) fn encode_header(kind: TokenType, len: u64, largest: u32) -> [u8; HEADER_BYTES] {
    let Some((magic, version, _)) = KINDS.iter().find(|known| known.2 == kind) else {
        panic!("the format has no {kind:?}");
    };
    let mut header = [0; HEADER_BYTES];
    for (place, value) in [*magic, *version, len as u32, largest.saturating_add(1)].iter().enumerate() {
        header[4 * place..4 * place + 4].copy_from_slice(&value.to_le_bytes());
    }
    header
}

/// The content of a file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Type of the tokens.
    pub(crate) kind: TokenType,
    /// Number of tokens.
    pub(crate) len: u64,
    /// No token is larger. `None` if the header does not have it.
    pub(crate) largest: Option<u32>,
}

/// Reads the header of a file of `length` bytes that begins with `bytes`: [`HEADER_BYTES`] of them, or all. `None` if it starts
/// with neither magic number.
///
/// # Errors
/// An unknown version, or fewer or more tokens than the header says.
pub(crate) fn read_header(name: &str, bytes: &[u8], length: u64) -> Result<Option<Header>, UserError> {
    let integer = |place: usize| bytes.as_chunks().0.get(place).map(|bytes| u32::from_le_bytes(*bytes));
    let Some(&(magic, version, kind)) = KINDS.iter().find(|kind| Some(kind.0) == integer(0)) else {
        return Ok(None);
    };
    let wrong = |what: String, rule: String| {
        UserError::new(format!("{name} {what}"), rule, "write it again, or copy it completely")
    };
    let (Some(found), Some(len), Some(bound), true) = (integer(1), integer(2), integer(3), bytes.len() >= HEADER_BYTES)
    else {
        let rule = format!("a token file starts with a header of {HEADER_BYTES} bytes");
        return Err(wrong(format!("has {length} bytes"), rule));
    };
    if found != version {
        return Err(wrong(format!("has version {found}"), format!("files of magic {magic} have version {version}")));
    }
    let expected = HEADER_BYTES as u64 + u64::from(len) * kind.size() as u64;
    if length != expected {
        let rule = format!("its header says {len} tokens: {expected} bytes with the header");
        return Err(wrong(format!("has {length} bytes"), rule));
    }
    Ok(Some(Header { kind, len: len.into(), largest: bound.checked_sub(1) }))
}
