//! From files of text to one run of tokens. A document gives the tokens that begin one, if the tokenizer has such
//! tokens, then its own, then the token that ends a document.
//!
//! A file is a document. In a file of JSON lines each line is one, in a Parquet file each row. Threads share the work
//! in pieces. A short document is one piece. A long one is cut at ends of lines, if the tokenizer returns the same
//! tokens with and without the cut. Files are read through buffers: memory holds only the text being tokenised.

use std::path::Path;
use std::sync::Arc;

use common::UserError;
use rayon::prelude::*;

use super::parquet::{ParquetRecords, ParquetRows};
use super::piece::{Holds, Piece};
use super::records::{RecordPlace, Records};
use super::text_bytes::is_parquet;
use super::text_file::{TextReader, check_text};
use super::text_files::TextFile;
use crate::file_notices::{FileNotices, NoDocument, Told};
use crate::formats::data_file::DataFile;
use crate::text::tokenizer::Tokenizer;

/// Bytes of text that are tokenised at a time.
const BATCH: usize = 16 << 20;

/// How much was tokenised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes of the text.
    pub(crate) bytes: u64,
    /// Documents.
    pub(crate) documents: u64,
    /// Tokens, including those that begin and end documents.
    pub(crate) tokens: u64,
    /// Tokens that begin and end documents.
    added: u64,
}

impl Totals {
    /// Whether there was no text: there are no tokens except those that begin and end documents.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens == self.added
    }
}

/// The pieces of a file.
enum Pieces<'f> {
    Text(TextReader<'f>),
    Rows(Arc<Path>, Box<ParquetRows>),
    Records(Arc<Path>, Box<ParquetRecords>),
}

impl Pieces<'_> {
    fn next(&mut self) -> Result<Option<Piece>, UserError> {
        match self {
            Pieces::Text(reader) => reader.next(),
            Pieces::Rows(path, rows) => Ok(rows.next()?.map(|(row, text)| Piece {
                path: path.clone(),
                holds: if text.is_some() { Holds::Text } else { Holds::Null },
                text: text.unwrap_or_default(),
                place: Some(RecordPlace::Row(row)),
                ends_document: true,
            })),
            Pieces::Records(path, rows) => {
                Ok(rows.next()?.map(|(row, text)| Piece::record(path, RecordPlace::Row(row), text)))
            }
        }
    }
}

/// Tokenises files in order. `key` is the key of the text in a JSON line, and the column of it in a Parquet file. `sink`
/// receives the tokens and the totals so far. Documents without text are left out. Also returns notices about files and
/// documents.
///
/// # Errors
/// A file that cannot be read or is not text, a line that is not JSON or has no text, an error of `sink`.
pub(crate) fn encode_files<E: From<UserError> + Send>(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    key: &str,
    mut sink: impl FnMut(&[u32], Totals) -> Result<(), E>,
) -> Result<(Totals, FileNotices), E> {
    let (mut totals, mut left_out) = (Totals::default(), FileNotices::default());
    let mut begins = true;
    let notices = read_files(files, tokenizer, Records::Documents(key), |batch| -> Result<(), E> {
        let encoded = in_parallel(batch, |piece| piece.encode(tokenizer, key))?;
        for (piece, tokens) in batch.iter().zip(encoded) {
            let is_whole = begins && piece.ends_document;
            let mut tokens = match tokens {
                Some(tokens) if !tokens.is_empty() || !is_whole => tokens,
                none => {
                    let why = if none.is_some() { NoDocument::Empty } else { NoDocument::Null };
                    left_out.add_document(why, || piece.name());
                    continue;
                }
            };
            if begins {
                tokens.splice(..0, tokenizer.begin().iter().copied());
                totals.added += tokenizer.begin().len() as u64;
            }
            begins = piece.ends_document;
            if piece.ends_document {
                tokens.push(tokenizer.end_of_text());
                totals.added += 1;
                totals.documents += 1;
            }
            totals.bytes += piece.text.len() as u64;
            totals.tokens += tokens.len() as u64;
            sink(&tokens, totals)?;
        }
        Ok(())
    })?;
    left_out.extend(notices);
    Ok((totals, left_out))
}

/// `read` of each piece, in order, on all threads.
///
/// # Errors
/// That of the first piece that has one, in the order of the files: a mistake is reported the same in every run.
pub(crate) fn in_parallel<T: Send>(
    pieces: &[Piece],
    read: impl Fn(&Piece) -> Result<T, UserError> + Send + Sync,
) -> Result<Vec<T>, UserError> {
    // Collected as a single result, rayon returns the error that happens first.
    let results: Vec<Result<T, UserError>> = pieces.par_iter().map(read).collect();
    results.into_iter().collect()
}

/// Reads files in order and passes on their pieces, as many at a time as threads share well. Returns notices about files, such
/// as those in folders that were left out because they are not text.
///
/// # Errors
/// As [`encode_files`].
pub(crate) fn read_files<E: From<UserError>>(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    records: Records<'_>,
    mut sink: impl FnMut(&[Piece]) -> Result<(), E>,
) -> Result<FileNotices, E> {
    let mut notices = FileNotices::default();
    let mut batch: Vec<Piece> = Vec::new();
    let mut held = 0;
    for TextFile { path, in_folder } in files {
        let file = DataFile::open(path).map_err(|error| {
            let what = format!("{} cannot be read: {error}", path.display());
            UserError::new(what, "data files are readable", "check the path")
        })?;
        let mut pieces = if is_parquet(path, &file)? {
            match records {
                Records::Documents(key) => Pieces::Rows(path.as_path().into(), ParquetRows::open(path, key)?.into()),
                _ => Pieces::Records(path.as_path().into(), ParquetRecords::open(path, records)?.into()),
            }
        } else {
            if let Err(error) = check_text(path, &file)? {
                // A file that the user named is text.
                if !in_folder {
                    return Err(error.into());
                }
                notices.add(Told::NotText, [path.clone()]);
                continue;
            }
            let reader = TextReader::new(path, &file, tokenizer, records)?;
            notices.add(Told::Marked, reader.has_mark().then(|| path.clone()));
            Pieces::Text(reader)
        };
        while let Some(piece) = pieces.next()? {
            held += piece.text.len();
            batch.push(piece);
            if held >= BATCH {
                sink(&batch)?;
                batch.clear();
                held = 0;
            }
        }
    }
    sink(&batch)?;
    Ok(notices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_mistakes_the_first_in_the_file_is_reported_whichever_thread_is_faster() {
        let path: Arc<Path> = Path::new("x.jsonl").into();
        let piece = |line| Piece::record(&path, RecordPlace::Line(line), String::new());
        let pieces: Vec<Piece> = (1..=64).map(piece).collect();
        for _ in 0..20 {
            let error = in_parallel(&pieces, |piece| -> Result<(), UserError> {
                // The first mistake takes the longest.
                let line = piece.place.map_or(0, RecordPlace::number);
                if line == 3 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                match line {
                    3.. => Err(UserError::new(format!("line {line}"), "a rule", "a fix")),
                    _ => Ok(()),
                }
            });
            assert_eq!(error.unwrap_err().what, "line 3");
        }
    }
}
