//! From files of text to one run of tokens: the tokens of each document, then the token that ends a document.
//!
//! A file is a document. In a `.jsonl` file each line is one. Threads share the work in pieces: a short document is one
//! piece. A long one is cut at ends of lines where the tokenizer returns the same tokens with and without the cut.

use std::path::{Path, PathBuf};

use common::UserError;
use rayon::prelude::*;

use crate::formats::mapped::MappedFile;
use crate::text::tokenizer::Tokenizer;

/// Bytes of text that are tokenised at a time.
const BATCH: usize = 16 << 20;
/// Smallest size of a piece of a long document, in bytes.
const PIECE: usize = 256 << 10;
/// How many bytes after that a place to cut is searched.
const SEARCH: usize = 64 << 10;

/// How much was tokenised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Documents.
    pub(crate) documents: u64,
    /// Tokens, including those that end documents.
    pub(crate) tokens: u64,
    /// Files in folders that were skipped because they are not UTF-8.
    pub(crate) skipped: u64,
}

impl Totals {
    /// Whether there was no text: there are no tokens except those that end documents.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens <= self.documents
    }
}

/// A file of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextFile {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The user named its folder, not the file: it is skipped if it is not UTF-8.
    pub(crate) in_folder: bool,
}

/// The file at `path`, or all files in that folder and the folders inside it, sorted by name.
///
/// # Errors
/// What the operating system said, with the folder.
pub(crate) fn text_files(path: &Path) -> std::io::Result<Vec<TextFile>> {
    if !path.is_dir() {
        std::fs::metadata(path)?;
        return Ok(vec![TextFile { path: path.into(), in_folder: false }]);
    }
    files_within(path, path)
}

/// The files of a folder, which is `top` or inside it.
fn files_within(top: &Path, path: &Path) -> std::io::Result<Vec<TextFile>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = entries.map_err(|error| match path == top {
        true => error,
        false => std::io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    })?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        if path.is_dir() && !entry.file_type()?.is_symlink() {
            files.extend(files_within(top, &path)?);
        } else if path.is_file() {
            files.push(TextFile { path, in_folder: true });
        }
    }
    Ok(files)
}

/// Tokenises files in order. `json_key` is the key of the text in a line of a `.jsonl` file. `sink` receives the tokens and
/// the totals so far.
///
/// # Errors
/// A file that cannot be read or is not text, a line that is not JSON or has no text, and what `sink` returns.
pub(crate) fn encode_files<E: From<UserError> + Send>(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    json_key: &str,
    mut sink: impl FnMut(&[u32], Totals) -> Result<(), E>,
) -> Result<Totals, E> {
    let mut totals = Totals::default();
    let mut group: Vec<Text> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        match Text::open(file)? {
            Some(text) => group.push(text),
            None => totals.skipped += 1,
        }
        let held: usize = group.iter().map(|text| text.len).sum();
        if held < BATCH && number + 1 < files.len() {
            continue;
        }
        let mut pieces = Vec::new();
        for text in &group {
            pieces.extend(text.pieces(tokenizer)?);
        }
        for batch in batches(&pieces) {
            let encoded: Vec<Vec<u32>> =
                batch.par_iter().map(|piece| piece.encode(tokenizer, json_key)).collect::<Result<_, UserError>>()?;
            for (piece, mut tokens) in batch.iter().zip(encoded) {
                if piece.ends_document {
                    tokens.push(tokenizer.end_of_text());
                    totals.documents += 1;
                }
                totals.bytes += piece.text.len() as u64;
                totals.tokens += tokens.len() as u64;
                sink(&tokens, totals)?;
            }
        }
        drop(pieces);
        group.clear();
    }
    Ok(totals)
}

/// Cuts the pieces into runs of about [`BATCH`] bytes.
fn batches<'p, 't>(pieces: &'p [Piece<'t>]) -> impl Iterator<Item = &'p [Piece<'t>]> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|piece| {
            let fits = bytes < BATCH;
            bytes += piece.text.len();
            fits
        });
        let (batch, after) = rest.split_at(fits.count());
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

/// A mapped file of UTF-8.
struct Text {
    path: PathBuf,
    file: MappedFile,
    len: usize,
}

impl Text {
    /// Maps a file. `None` if it is not UTF-8 and the user named its folder only.
    fn open(file: &TextFile) -> Result<Option<Text>, UserError> {
        let TextFile { path, in_folder } = file;
        let name = path.display();
        let map = MappedFile::open(path).map_err(|error| {
            UserError::new(format!("{name} cannot be read: {error}"), "data files are readable", "check the path")
        })?;
        let text = Text { path: path.clone(), len: map.bytes().map_or(0, <[u8]>::len), file: map };
        match text.text() {
            Ok(_) => Ok(Some(text)),
            Err(_) if *in_folder => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn text(&self) -> Result<&str, UserError> {
        let name = self.path.display();
        let bytes = self.file.bytes().map_err(|error| {
            UserError::new(format!("{name} cannot be read: {error}"), "data do not change during a run", "start again")
        })?;
        std::str::from_utf8(bytes).map_err(|error| {
            let what = format!("{name} is not UTF-8 text (byte {})", error.valid_up_to());
            if self.is_json_lines() {
                let fix = "write it again, or convert it with iconv";
                return UserError::new(what, "a .jsonl file is UTF-8 text with one JSON object per line", fix);
            }
            let extension = self.path.extension().map_or("none".into(), |text| format!(".{}", text.display()));
            let unknown = match &*extension {
                ".txt" | ".text" | ".md" => String::new(),
                other => format!(" and its extension, {other}, is unknown"),
            };
            UserError::new(
                format!("{what}{unknown}"),
                "data are UTF-8 text, .jsonl, token files .bin, or Megatron's .bin with .idx",
                "unpack it, convert it with iconv, or write its text to .jsonl",
            )
        })
    }

    fn is_json_lines(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "jsonl")
    }

    fn pieces(&self, tokenizer: &Tokenizer) -> Result<Vec<Piece<'_>>, UserError> {
        let text = self.text()?;
        let path = &self.path;
        let piece = |text, line, ends_document| Piece { path, text, line, ends_document };
        if self.is_json_lines() {
            let lines = text.split_inclusive('\n').enumerate().filter(|(_, line)| !line.trim().is_empty());
            return Ok(lines.map(|(number, line)| piece(line, Some(number + 1), true)).collect());
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = cut(rest, tokenizer) {
            let (first, after) = rest.split_at(at);
            pieces.push(piece(first, None, false));
            rest = after;
        }
        // An empty file is not a document.
        if !text.is_empty() {
            pieces.push(piece(rest, None, true));
        }
        Ok(pieces)
    }
}

/// Where to cut a long text. `None` if it is short, or no end of line nearby is a good place.
fn cut(text: &str, tokenizer: &Tokenizer) -> Option<usize> {
    if text.len() <= PIECE + SEARCH {
        return None;
    }
    let bytes = text.as_bytes();
    let blank = |byte: u8| byte.is_ascii_whitespace() || !byte.is_ascii();
    // Both lines have a visible character at the cut: tokenizers join runs of white space.
    let place = |at: &usize| bytes[at - 1] == b'\n' && !blank(bytes[at - 2]) && !blank(bytes[*at]);
    (PIECE..PIECE + SEARCH)
        .filter(place)
        .take(16)
        .find(|at| tokenizer.separates(&text[..PIECE + SEARCH + boundary(text)], *at))
}

/// How many bytes of the last searched character lie after the searched part.
fn boundary(text: &str) -> usize {
    (0..4).find(|more| text.is_char_boundary(PIECE + SEARCH + more)).unwrap_or(0)
}

/// A document, or a part of a long one.
struct Piece<'t> {
    path: &'t Path,
    text: &'t str,
    /// Its line number in a `.jsonl` file.
    line: Option<usize>,
    ends_document: bool,
}

impl Piece<'_> {
    fn encode(&self, tokenizer: &Tokenizer, json_key: &str) -> Result<Vec<u32>, UserError> {
        let name = self.path.display();
        let encoded = match self.line {
            None => tokenizer.encode(self.text),
            Some(line) => {
                let wrong = |what: String, fix: &str| {
                    let rule = format!("each line is a JSON object with text under `{json_key}`");
                    UserError::new(format!("{name} line {line} {what}"), rule, fix)
                };
                let value: serde_json::Value = serde_json::from_str(self.text)
                    .map_err(|error| wrong(format!("is not JSON: {error}"), "correct that line"))?;
                let text = value.get(json_key).and_then(serde_json::Value::as_str).ok_or_else(|| {
                    let fix = "correct that line, or make token files with `trainer tokenize --json-key KEY`";
                    wrong("has no such text".into(), fix)
                })?;
                tokenizer.encode(text)
            }
        };
        encoded.map_err(|error| {
            UserError::new(
                format!("{name}: the tokenizer fails: {error}"),
                "a tokenizer accepts any text",
                "use a tokenizer.json with an unknown token, or a byte-level one",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_document_is_cut_into_pieces_that_make_it_up() {
        let line = "some words of a line that is not very long\n";
        let text = line.repeat(3 * PIECE / line.len());
        let mut rest = text.as_str();
        let mut pieces = Vec::new();
        while let Some(at) = cut(rest, &Tokenizer::Bytes) {
            pieces.push(&rest[..at]);
            rest = &rest[at..];
        }
        assert!(pieces.len() >= 2 && pieces.iter().all(|piece| piece.ends_with('\n')));
        assert_eq!(pieces.concat() + rest, text);
    }

    #[test]
    fn text_without_a_good_place_is_not_cut() {
        assert_eq!(cut(&"no lines ".repeat(PIECE), &Tokenizer::Bytes), None);
        assert_eq!(cut(&"é\n\n".repeat(PIECE), &Tokenizer::Bytes), None);
    }
}
