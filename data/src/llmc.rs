//! Token files of llm.c, which is also what `trainer tokenize` writes.
//!
//! A header of 256 little-endian 32-bit integers: magic, version, number of tokens; the rest is zero. Then the tokens.
//! Magic 20240520 with version 1 holds 16-bit tokens, magic 20240801 with version 7 holds 32-bit ones
//! (llm.c, `dev/data/data_common.py`). Readers of the format look at these three integers alone; the fourth is where
//! files written here note their largest token plus one, so that it need not be searched for.

use common::UserError;

use super::tokens::TokenType;

/// Bytes of the header.
pub const HEADER: usize = 1024;
/// Most tokens of a file: they are counted in a signed 32-bit integer.
pub const MOST_TOKENS: u64 = i32::MAX as u64;

/// Magic, version and type of the two kinds of file.
const KINDS: [(u32, u32, TokenType); 2] = [(20240520, 1, TokenType::U16), (20240801, 7, TokenType::U32)];

/// The header of a file of `len` tokens, none above `largest`.
///
/// # Panics
/// If `kind` is none that the format has: [`TokenType::for_vocab`] gives one that it has.
pub fn header(kind: TokenType, len: u64, largest: u32) -> [u8; HEADER] {
    let Some((magic, version, _)) = KINDS.iter().find(|known| known.2 == kind) else {
        panic!("the format has no {kind:?}");
    };
    let mut header = [0; HEADER];
    for (place, value) in [*magic, *version, len as u32, largest.saturating_add(1)].iter().enumerate() {
        header[4 * place..4 * place + 4].copy_from_slice(&value.to_le_bytes());
    }
    header
}

/// Where the tokens of a file are: what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Type of the tokens.
    pub kind: TokenType,
    /// How many there are.
    pub len: u64,
    /// An id that none exceeds, if it is noted.
    pub largest: Option<u32>,
}

/// Reads the header of a file, all of whose bytes are given; none if it starts with neither magic number.
///
/// # Errors
/// An unknown version, or fewer or more tokens than the header says.
pub fn layout(name: &str, bytes: &[u8]) -> Result<Option<Layout>, UserError> {
    let integer = |place: usize| bytes.as_chunks().0.get(place).map(|bytes| u32::from_le_bytes(*bytes));
    let Some(&(magic, version, kind)) = KINDS.iter().find(|kind| Some(kind.0) == integer(0)) else {
        return Ok(None);
    };
    let wrong = |what: String, rule: String| {
        UserError::new(format!("{name} {what}"), rule, "write it anew, or copy it completely")
    };
    let (Some(found), Some(len), Some(bound), true) = (integer(1), integer(2), integer(3), bytes.len() >= HEADER)
    else {
        let rule = format!("a token file starts with a header of {HEADER} bytes");
        return Err(wrong(format!("has {} bytes", bytes.len()), rule));
    };
    if found != version {
        return Err(wrong(format!("has version {found}"), format!("files of magic {magic} have version {version}")));
    }
    let expected = HEADER + len as usize * kind.size();
    if bytes.len() != expected {
        let rule = format!("its header says {len} tokens, which with it make {expected} bytes");
        return Err(wrong(format!("has {} bytes", bytes.len()), rule));
    }
    Ok(Some(Layout { kind, len: len.into(), largest: bound.checked_sub(1) }))
}
