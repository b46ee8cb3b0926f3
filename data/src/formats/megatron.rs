//! Megatron's indexed datasets: `NAME.bin` holds tokens, `NAME.idx` the beginning of each sequence.
//!
//! The index is little-endian (Megatron-LM, `core/datasets/indexed_dataset.py`): `MMIDIDX\0\0`, u64 version 1, u8 type,
//! u64 number of sequences, u64 number of document boundaries. Then come the i32 lengths and the i64 byte offsets of the
//! sequences, and the i64 document boundaries: the first sequence of each document, and one past the last. Sequences lie
//! end to end, so the `.bin` is one run of tokens.

use std::path::Path;

use common::UserError;

use crate::formats::data_file::{DataFile, Sequential};
use crate::formats::tokens::{Storage, TokenType, Tokens};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// Bytes before the lengths.
const HEADER_BYTES: usize = 34;
/// Sequences of an index that are read at a time.
const AT_A_TIME: usize = 64 << 10;

/// Opens a dataset.
///
/// # Errors
/// Files that cannot be read, a file that is not an index, an index that is cut short or does not fit the `.bin`.
pub fn open(bin: &Path, index: &Path) -> Result<Tokens, UserError> {
    let file = DataFile::open(bin).map_err(|error| unreadable(bin, &error))?;
    let bytes = file.len();
    let index_file = DataFile::open(index).map_err(|error| unreadable(index, &error))?;
    let (kind, sequences) = read_header(index, &index_file)?;
    let described = described_bytes(index, &index_file, kind, sequences)?;
    if described != bytes {
        let what = format!("describes {described} bytes, but {} has {bytes}", bin.display());
        return Err(wrong(index, what, "the index and the tokens are of the same dataset"));
    }
    Ok(Tokens {
        name: bin.display().to_string(),
        storage: Storage::File(file),
        kind,
        offset: 0,
        len: bytes / kind.size() as u64,
        largest: None,
    })
}

/// The type of the tokens and the number of sequences, from an index of the right length.
fn read_header(index: &Path, file: &DataFile) -> Result<(TokenType, u64), UserError> {
    let length = file.len();
    let mut header = vec![0; length.min(HEADER_BYTES as u64) as usize];
    file.read(&mut header, 0).map_err(|error| unreadable(index, &error))?;
    let idx = &header[..];
    if !idx.starts_with(MAGIC) {
        let what = format!("starts with {:?}", String::from_utf8_lossy(&idx[..idx.len().min(MAGIC.len())]));
        return Err(wrong(index, what, "an index starts with the magic MMIDIDX"));
    }
    if idx.len() < HEADER_BYTES {
        let rule = format!("an index has a header of {HEADER_BYTES} bytes");
        return Err(wrong(index, format!("has {length} bytes"), rule));
    }
    let (version, sequences, boundaries) = (read_u64(idx, 9), read_u64(idx, 18), read_u64(idx, 26));
    if version != 1 {
        return Err(wrong(index, format!("has version {version}"), "the only known version is 1"));
    }
    let kind = match idx[17] {
        1 => TokenType::U8,
        2 => TokenType::I8,
        3 => TokenType::I16,
        4 => TokenType::I32,
        5 => TokenType::I64,
        8 => TokenType::U16,
        code => return Err(wrong(index, format!("has tokens of type {code}"), "integer types are 1 to 5 and 8")),
    };
    // u128: a corrupt count must not overflow. Multimodal datasets have one more byte for each sequence.
    let expected = u128::from(sequences) * 12 + u128::from(boundaries) * 8 + HEADER_BYTES as u128;
    let multimodal = expected + u128::from(sequences);
    if u128::from(length) != expected && u128::from(length) != multimodal {
        let rule =
            format!("its header says {sequences} sequences and {boundaries} document boundaries: {expected} bytes");
        return Err(wrong(index, format!("has {length} bytes"), rule));
    }
    Ok((kind, sequences))
}

/// The bytes of all sequences, which must lie end to end.
fn described_bytes(index: &Path, file: &DataFile, kind: TokenType, sequences: u64) -> Result<u64, UserError> {
    // The lengths of all sequences come first, then their offsets.
    let begin = HEADER_BYTES as u64;
    let middle = begin + 4 * sequences;
    let mut lengths = Sequential::new(file, begin, middle);
    let mut offsets = Sequential::new(file, middle, middle + 8 * sequences);
    let (mut next, mut number) = (0u64, 0u64);
    while number < sequences {
        let count = (sequences - number).min(AT_A_TIME as u64) as usize;
        for (values, size) in [(&mut lengths, 4), (&mut offsets, 8)] {
            values.fill(count * size).map_err(|error| unreadable(index, &error))?;
        }
        for (length, offset) in lengths.buffer().as_chunks().0.iter().zip(offsets.buffer().as_chunks().0) {
            let (length, offset) = (i32::from_le_bytes(*length), u64::from_le_bytes(*offset));
            if length < 0 || offset != next {
                let what = format!("has sequence {number}, of {length} tokens, at byte {offset}");
                return Err(wrong(index, what, format!("sequences lie end to end, so this one is at byte {next}")));
            }
            next += length as u64 * kind.size() as u64;
            number += 1;
        }
        lengths.skip(count * 4);
        offsets.skip(count * 8);
    }
    Ok(next)
}

fn unreadable(path: &Path, error: &std::io::Error) -> UserError {
    UserError::new(
        format!("{} cannot be read: {error}", path.display()),
        "a Megatron dataset is a .bin and an .idx of the same name",
        "give both, readable",
    )
}

fn wrong(index: &Path, what: String, rule: impl Into<String>) -> UserError {
    let fix = "write the dataset again with Megatron's preprocess_data.py, or copy both files completely";
    UserError::new(format!("{} {what}", index.display()), rule, fix)
}

/// The little-endian u64 at byte `at`.
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
