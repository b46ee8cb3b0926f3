//! A run of tokens in a file or in memory, of any type that files have.

use std::ops::Range;

use common::UserError;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::error::DataError;
use crate::formats::data_file::DataFile;

/// Bytes of a dataset that are checked before a run begins: half of them at the beginnings of its files, half at their
/// ends. Reading all of a large dataset would delay every start, by minutes from a remote disk.
pub(crate) const CHECKED_BYTES: usize = 128 << 20;

/// Type of a token on disk, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TokenType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    I64,
}

impl TokenType {
    /// The type that token files written here have for ids below `vocab`.
    pub fn for_vocab(vocab: usize) -> TokenType {
        if vocab <= 1 << 16 { TokenType::U16 } else { TokenType::U32 }
    }

    /// Bytes of a token.
    pub fn size(self) -> usize {
        match self {
            TokenType::U8 | TokenType::I8 => 1,
            TokenType::U16 | TokenType::I16 => 2,
            TokenType::U32 | TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }

    /// Appends the bytes of ids. The type must have room for them.
    pub fn encode(self, ids: &[u32], bytes: &mut Vec<u8>) {
        for id in ids {
            bytes.extend(&u64::from(*id).to_le_bytes()[..self.size()]);
        }
    }

    /// Calls `each` with every token of `bytes`.
    fn decode(self, bytes: &[u8], mut each: impl FnMut(i64)) {
        match self {
            TokenType::U8 => bytes.iter().for_each(|b| each(i64::from(*b))),
            TokenType::I8 => bytes.iter().for_each(|b| each(i64::from(*b as i8))),
            TokenType::U16 => bytes.as_chunks().0.iter().for_each(|b| each(i64::from(u16::from_le_bytes(*b)))),
            TokenType::I16 => bytes.as_chunks().0.iter().for_each(|b| each(i64::from(i16::from_le_bytes(*b)))),
            TokenType::U32 => bytes.as_chunks().0.iter().for_each(|b| each(i64::from(u32::from_le_bytes(*b)))),
            TokenType::I32 => bytes.as_chunks().0.iter().for_each(|b| each(i64::from(i32::from_le_bytes(*b)))),
            TokenType::I64 => bytes.as_chunks().0.iter().for_each(|b| each(i64::from_le_bytes(*b))),
        }
    }
}

/// Bytes at a file's beginning, and as many at the end, that identify the file.
const IDENTIFYING_BYTES: usize = 4096;

/// Files are checked in chunks of this many bytes.
const CHUNK: u64 = 1 << 20;

/// Rows are read in chunks of this many bytes, on the stack: the rows of most runs fit.
const ROW: usize = 16 << 10;

/// The place of the bytes of tokens.
pub(crate) enum Storage {
    /// In a file.
    File(DataFile),
    /// In memory: text that was tokenised at the start.
    Memory(Vec<u8>),
}

/// Tokens that follow each other.
pub(crate) struct Tokens {
    /// The tokens' name in messages.
    pub(crate) name: String,
    /// The place of the tokens' bytes. Other bytes may lie before and after.
    pub(crate) storage: Storage,
    /// The tokens' type.
    pub(crate) kind: TokenType,
    /// Offset of the first token, in bytes.
    pub(crate) offset: usize,
    /// Number of tokens.
    pub(crate) len: u64,
    /// No token is larger. `None` if the file does not say.
    pub(crate) largest: Option<u32>,
}

impl Tokens {
    /// Writes tokens `start..start + row.len()` into `row`. They must exist.
    ///
    /// # Errors
    /// The file changed since it was opened and cannot be read any more. Or a token is not below `vocab`:
    /// [`Tokens::check`] did not look at it, or it changed since.
    pub(crate) fn read(&self, start: u64, row: &mut [i32], vocab: usize) -> Result<(), DataError> {
        let size = self.kind.size();
        let first = (self.offset + start as usize * size) as u64;
        let (mut outside, mut position) = (None, start);
        let mut bytes = [0; ROW];
        for (number, row) in row.chunks_mut(ROW / size).enumerate() {
            let bytes = &mut bytes[..row.len() * size];
            let at = first + (number * ROW) as u64;
            self.read_bytes(bytes, at).map_err(|error| self.changed(&error.to_string()))?;
            let mut places = row.iter_mut();
            self.kind.decode(bytes, |id| {
                if let Some(place) = places.next() {
                    // Ids below `vocab` fit: vocabularies are far below 2^31.
                    *place = id as i32;
                }
                if outside.is_none() && (id < 0 || id >= vocab as i64) {
                    outside = Some((id, position));
                }
                position += 1;
            });
        }
        match outside {
            Some((id, position)) => {
                let UserError { what, rule, fix, .. } = self.outside(id, Some(position), vocab);
                Err(DataError { what: format!("{what}. Rule: {rule}"), fix })
            }
            None => Ok(()),
        }
    }

    /// Checks before a run that tokens are below `vocab`: all tokens if they are in memory or the file says its largest,
    /// else those in the first and the last `part` bytes. [`Tokens::read`] checks the others.
    ///
    /// # Errors
    /// Names a token that is not below `vocab`.
    pub(crate) fn check(&self, part: usize, vocab: usize) -> Result<(), UserError> {
        if let Some(largest) = self.largest {
            let fits = i64::from(largest) < vocab as i64;
            return if fits { Ok(()) } else { Err(self.outside(largest.into(), None, vocab)) };
        }
        let (size, first) = (self.kind.size(), self.offset as u64);
        let bytes = self.len * size as u64;
        let part = match self.storage {
            Storage::Memory(_) => bytes,
            Storage::File(_) => (part.next_multiple_of(size) as u64).min(bytes),
        };
        // The two may overlap.
        let ends = [0, bytes - part];
        let ends = if part == bytes { &ends[..1] } else { &ends };
        let unreadable = |error: std::io::Error| {
            UserError::new(
                format!("{} cannot be read: {error}", self.name),
                "data do not change during a run",
                "start again",
            )
        };
        let chunks = |begin: u64| {
            let chunk = move |number| begin + number * CHUNK..begin + part.min((number + 1) * CHUNK);
            (0..part.div_ceil(CHUNK)).map(chunk)
        };
        let all: Vec<Range<u64>> = ends.iter().copied().flat_map(chunks).collect();
        let read = |chunk: &Range<u64>| -> std::io::Result<Vec<u8>> {
            let mut bytes = vec![0; (chunk.end - chunk.start) as usize];
            self.read_bytes(&mut bytes, first + chunk.start).map(|()| bytes)
        };
        let ranges = all.par_iter().map(|chunk| Ok(self.range(&read(chunk)?)));
        let (smallest, largest) =
            ranges.try_reduce(|| (0, 0), |a, b| Ok((a.0.min(b.0), a.1.max(b.1)))).map_err(unreadable)?;
        let id = if smallest < 0 { smallest } else { largest };
        if (0..vocab as i64).contains(&id) {
            return Ok(());
        }
        for chunk in &all {
            if let Some(place) = self.find(&read(chunk).map_err(unreadable)?, id) {
                return Err(self.outside(id, Some(chunk.start / size as u64 + place), vocab));
            }
        }
        Err(self.outside(id, None, vocab))
    }

    /// Adds the tokens' identity to a hash: their number, then all tokens in memory, or the first and the last few of a
    /// file, because a file may be larger than memory.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub(crate) fn identify(&self, hash: &mut Sha256) -> Result<(), DataError> {
        hash.update(self.len.to_le_bytes());
        let (first, bytes) = (self.offset as u64, self.len * self.kind.size() as u64);
        let Storage::File(_) = &self.storage else {
            if let Storage::Memory(bytes) = &self.storage {
                hash.update(bytes);
            }
            return Ok(());
        };
        let part = bytes.min(IDENTIFYING_BYTES as u64);
        for at in [first, first + bytes - part] {
            let mut chunk = vec![0; part as usize];
            self.read_bytes(&mut chunk, at).map_err(|error| self.changed(&error.to_string()))?;
            hash.update(&chunk);
        }
        Ok(())
    }

    /// The smallest and the largest of 0 and the tokens.
    fn range(&self, bytes: &[u8]) -> (i64, i64) {
        let (mut smallest, mut largest) = (0, 0);
        self.kind.decode(bytes, |id| (smallest, largest) = (id.min(smallest), id.max(largest)));
        (smallest, largest)
    }

    /// The position of the first such token.
    fn find(&self, bytes: &[u8], wanted: i64) -> Option<u64> {
        let (mut found, mut position) = (None, 0);
        self.kind.decode(bytes, |id| {
            if id == wanted && found.is_none() {
                found = Some(position);
            }
            position += 1;
        });
        found
    }

    /// The error for a token that is not in the vocabulary.
    fn outside(&self, id: i64, position: Option<u64>, vocab: usize) -> UserError {
        let fix = match id {
            0.. => format!("set model.vocab = {} or more, or use data of another tokenizer", id + 1),
            _ => "write the file again: ids are not negative".into(),
        };
        let place = position.map_or(String::new(), |position| format!(" at position {position}"));
        UserError::new(
            format!("{} holds token {id}{place}", self.name),
            format!("tokens are 0 to model.vocab - 1 = {}", vocab - 1),
            fix,
        )
    }

    /// Reads bytes from `at` on, until `bytes` is full.
    fn read_bytes(&self, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
        match &self.storage {
            Storage::File(file) => file.read(bytes, at),
            Storage::Memory(all) => {
                bytes.copy_from_slice(&all[at as usize..at as usize + bytes.len()]);
                Ok(())
            }
        }
    }

    fn changed(&self, how: &str) -> DataError {
        let what = format!("{} changed during the run: {how}", self.name);
        DataError { what, fix: "do not change data during a run, and start again".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(kind: TokenType, bytes: Vec<u8>) -> Tokens {
        let len = (bytes.len() / kind.size()) as u64;
        Tokens { name: "x".into(), storage: Storage::Memory(bytes), kind, offset: 0, len, largest: None }
    }

    #[test]
    fn every_type_reads_back_its_largest_and_smallest_ids() {
        let cases = [
            (TokenType::U8, vec![0, 255], vec![0, 255]),
            (TokenType::I8, vec![1, 127], vec![1, 127]),
            (TokenType::U16, vec![1, 0, 255, 255], vec![1, 65535]),
            (TokenType::I16, vec![1, 0, 255, 127], vec![1, 32767]),
            (TokenType::U32, vec![1, 0, 0, 0, 0, 0, 1, 0], vec![1, 65536]),
            (TokenType::I32, vec![1, 0, 0, 0, 0, 0, 1, 0], vec![1, 65536]),
            (TokenType::I64, vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0], vec![1, 258]),
        ];
        for (kind, bytes, ids) in cases {
            let mut row = [0; 2];
            tokens(kind, bytes.clone()).read(0, &mut row, 1 << 20).unwrap();
            assert_eq!(row.as_slice(), ids, "{kind:?}");
            let mut encoded = Vec::new();
            kind.encode(&row.map(|id| id as u32), &mut encoded);
            assert_eq!(encoded, bytes, "{kind:?}");
        }
    }

    #[test]
    fn a_negative_token_and_one_past_the_vocabulary_are_refused() {
        let check = |kind, bytes| tokens(kind, bytes).check(1 << 20, 10).map_err(|error| error.what);
        assert_eq!(check(TokenType::I16, vec![0, 0, 255, 255]), Err("x holds token -1 at position 1".into()));
        assert_eq!(check(TokenType::U8, vec![3, 10]), Err("x holds token 10 at position 1".into()));
        assert_eq!(check(TokenType::U8, vec![3, 9]), Ok(()));
        assert!(tokens(TokenType::U8, vec![3, 10]).read(0, &mut [0, 0], 10).is_err());
    }

    /// Of 100 tokens in a file the one at `position` is past the vocabulary; 10 bytes at each end are looked at.
    fn one_wrong(position: usize) -> Tokens {
        let mut bytes = vec![0; 200];
        bytes[2 * position..2 * position + 2].copy_from_slice(&300u16.to_le_bytes());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let storage = Storage::File(DataFile::open(file.path()).unwrap());
        Tokens { storage, ..tokens(TokenType::U16, bytes) }
    }

    #[test]
    fn a_start_looks_at_both_ends_of_a_file_and_not_at_all_of_it() {
        for position in [0, 4, 95, 99] {
            let error = one_wrong(position).check(10, 256).unwrap_err();
            assert_eq!(error.what, format!("x holds token 300 at position {position}"));
        }
        for position in [5, 50, 94] {
            assert_eq!(one_wrong(position).check(10, 256), Ok(()), "{position}");
            assert!(one_wrong(position).check(100, 256).is_err(), "{position}");
        }
    }

    #[test]
    fn a_wrong_token_that_the_start_did_not_look_at_is_named_with_its_place_when_it_is_read() {
        let tokens = one_wrong(50);
        assert!(tokens.read(40, &mut [0; 10], 256).is_ok() && tokens.read(51, &mut [0; 10], 256).is_ok());
        assert_eq!(
            tokens.read(45, &mut [0; 10], 256).unwrap_err().to_string(),
            "x holds token 300 at position 50. Rule: tokens are 0 to model.vocab - 1 = 255. \
             Fix: set model.vocab = 301 or more, or use data of another tokenizer"
        );
    }
}
