//! From files of text to one run of tokens. A document gives the tokens that begin one, if the tokenizer has such
//! tokens, then its own, then the token that ends a document.
//!
//! A file is a document. In a file of JSON lines each line is one, in a Parquet file each row. Threads share the work
//! in segments. A short document is one segment. A long one is cut at ends of lines, if the tokenizer returns the same
//! tokens with and without the cut. Files are read through buffers: memory holds only the text being tokenised.

use std::path::Path;
use std::sync::Arc;

use common::UserError;
use rayon::prelude::*;

use super::parquet::{ParquetRecords, ParquetRows};
use super::records::{RecordPlace, Records};
use super::segment::{Holds, Segment};
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
    /// Tokens, also the tokens that begin and end documents.
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

/// The segments of a file.
enum Segments<'f> {
    Text(TextReader<'f>),
    Rows(Arc<Path>, Box<ParquetRows>),
    Records(Arc<Path>, Box<ParquetRecords>),
}

impl Segments<'_> {
    fn next(&mut self) -> Result<Option<Segment>, UserError> {
        match self {
            Segments::Text(reader) => reader.next(),
            Segments::Rows(path, rows) => Ok(rows.next()?.map(|(row, text)| Segment {
                path: path.clone(),
                holds: if text.is_some() { Holds::Text } else { Holds::Null },
                text: text.unwrap_or_default(),
                place: Some(RecordPlace::Row(row)),
                ends_document: true,
            })),
            Segments::Records(path, rows) => {
                Ok(rows.next()?.map(|(row, text)| Segment::record(path, RecordPlace::Row(row), text)))
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
        let encoded = in_parallel(batch, |segment| segment.encode(tokenizer, key))?;
        for (segment, tokens) in batch.iter().zip(encoded) {
            let is_whole = begins && segment.ends_document;
            let mut tokens = match tokens {
                Some(tokens) if !tokens.is_empty() || !is_whole => tokens,
                none => {
                    let why = if none.is_some() { NoDocument::Empty } else { NoDocument::Null };
                    left_out.add_document(why, || segment.name());
                    continue;
                }
            };
            if begins {
                tokens.splice(..0, tokenizer.begin().iter().copied());
                totals.added += tokenizer.begin().len() as u64;
            }
            begins = segment.ends_document;
            if segment.ends_document {
                tokens.push(tokenizer.end_of_text());
                totals.added += 1;
                totals.documents += 1;
            }
            totals.bytes += segment.text.len() as u64;
            totals.tokens += tokens.len() as u64;
            sink(&tokens, totals)?;
        }
        Ok(())
    })?;
    left_out.extend(notices);
    Ok((totals, left_out))
}

/// `read` of each segment, in order, on all threads.
///
/// # Errors
/// The error of the first segment that has one, in the order of the files: every run reports the same mistake.
pub(crate) fn in_parallel<T: Send>(
    segments: &[Segment],
    read: impl Fn(&Segment) -> Result<T, UserError> + Send + Sync,
) -> Result<Vec<T>, UserError> {
    // Collected as a single result, rayon returns the error that happens first.
    let results: Vec<Result<T, UserError>> = segments.par_iter().map(read).collect();
    results.into_iter().collect()
}

/// Reads files in order and passes on the segments, as many at a time as threads share well. Returns notices about files,
/// such as those in folders that were left out because they are not text.
///
/// # Errors
/// As [`encode_files`].
pub(crate) fn read_files<E: From<UserError>>(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    records: Records<'_>,
    mut sink: impl FnMut(&[Segment]) -> Result<(), E>,
) -> Result<FileNotices, E> {
    let mut notices = FileNotices::default();
    let mut batch: Vec<Segment> = Vec::new();
    let mut held = 0;
    for TextFile { path, in_folder } in files {
        let file = DataFile::open(path).map_err(|error| {
            let what = format!("{} cannot be read: {error}", path.display());
            UserError::new(what, "data files are readable", "check the path")
        })?;
        let mut segments = if is_parquet(path, &file)? {
            match records {
                Records::Documents(key) => Segments::Rows(path.as_path().into(), ParquetRows::open(path, key)?.into()),
                _ => Segments::Records(path.as_path().into(), ParquetRecords::open(path, records)?.into()),
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
            Segments::Text(reader)
        };
        while let Some(segment) = segments.next()? {
            held += segment.text.len();
            batch.push(segment);
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
        let segment = |line| Segment::record(&path, RecordPlace::Line(line), String::new());
        let segments: Vec<Segment> = (1..=64).map(segment).collect();
        for _ in 0..20 {
            let error = in_parallel(&segments, |segment| -> Result<(), UserError> {
                // The first mistake takes the longest.
                let line = segment.place.map_or(0, RecordPlace::number);
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
