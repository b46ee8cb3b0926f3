//! From files of text to one run of tokens: each document's, then the token that ends it.
//!
//! A file is a document; of a `.jsonl` file, each line's text is one. Work is shared out in pieces: documents, and parts of
//! long ones, cut at lines where the tokenizer gives the same tokens either way.

use std::path::{Path, PathBuf};

use common::UserError;
use rayon::prelude::*;

use super::mapped::MappedFile;
use super::tokenizer::Tokenizer;

/// Text that is tokenised at a time, bytes.
const BATCH: usize = 16 << 20;
/// Where a long document is cut, bytes, or soon after.
const PIECE: usize = 256 << 10;
/// How far after it a place to cut is looked for.
const SEARCH: usize = 64 << 10;

/// What was tokenised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of files.
    pub bytes: u64,
    /// Documents.
    pub documents: u64,
    /// Tokens, those that end documents among them.
    pub tokens: u64,
    /// Files that were left out: found in a folder, and not UTF-8.
    pub skipped: u64,
}

impl Totals {
    /// Whether there was no text: the only tokens, if any, are those that end documents.
    pub fn is_empty(&self) -> bool {
        self.tokens <= self.documents
    }
}

/// A file of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// Where it is.
    pub path: PathBuf,
    /// It was found in a folder, not named: it is left out if it is not UTF-8.
    pub found: bool,
}

/// The file at `path`, or all files of that folder and its folders, sorted.
///
/// # Errors
/// What the operating system said, and of which folder within.
pub fn text_files(path: &Path) -> std::io::Result<Vec<TextFile>> {
    if !path.is_dir() {
        std::fs::metadata(path)?;
        return Ok(vec![TextFile { path: path.into(), found: false }]);
    }
    files_within(path, path)
}

/// The files of a folder that was found within `top`.
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
            files.push(TextFile { path, found: true });
        }
    }
    Ok(files)
}

/// Tokenises files in their order. `json_key` is where a line of a `.jsonl` file has its text. `sink` gets the tokens, and
/// the totals so far.
///
/// # Errors
/// A file that cannot be read or is not text, a line that is not JSON or has no text, and what `sink` returns.
pub fn encode_files<E: From<UserError> + Send>(
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

/// Runs of pieces of about [`BATCH`] bytes.
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

/// A mapped file that was found to be UTF-8.
struct Text {
    path: PathBuf,
    file: MappedFile,
    len: usize,
}

impl Text {
    /// Maps a file; none if it is not UTF-8 and was not named.
    fn open(file: &TextFile) -> Result<Option<Text>, UserError> {
        let TextFile { path, found } = file;
        let name = path.display();
        let map = MappedFile::open(path).map_err(|error| {
            UserError::new(
                format!("{name} cannot be read: {error}"),
                "data are files that can be read",
                "check the path",
            )
        })?;
        let text = Text { path: path.clone(), len: map.bytes().map_or(0, <[u8]>::len), file: map };
        match text.text() {
            Ok(_) => Ok(Some(text)),
            Err(_) if *found => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn text(&self) -> Result<&str, UserError> {
        let name = self.path.display();
        let bytes = self.file.bytes().map_err(|error| {
            UserError::new(format!("{name} cannot be read: {error}"), "data stay as they are", "start again")
        })?;
        std::str::from_utf8(bytes).map_err(|error| {
            let what = format!("{name} is not UTF-8 text (byte {})", error.valid_up_to());
            if self.is_json_lines() {
                let fix = "write it anew, or convert it with iconv";
                return UserError::new(what, "a .jsonl file is UTF-8 text, a JSON object a line", fix);
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
        // An empty file is no document.
        if !text.is_empty() {
            pieces.push(piece(rest, None, true));
        }
        Ok(pieces)
    }
}

/// Where to cut a long text; none if it is short, or no line near is a good place.
fn cut(text: &str, tokenizer: &Tokenizer) -> Option<usize> {
    if text.len() <= PIECE + SEARCH {
        return None;
    }
    let bytes = text.as_bytes();
    let blank = |byte: u8| byte.is_ascii_whitespace() || !byte.is_ascii();
    // Between lines that end and start with a visible character: tokenizers take runs of white space together.
    let place = |at: &usize| bytes[at - 1] == b'\n' && !blank(bytes[at - 2]) && !blank(bytes[*at]);
    (PIECE..PIECE + SEARCH)
        .filter(place)
        .take(16)
        .find(|at| tokenizer.separates(&text[..PIECE + SEARCH + boundary(text)], *at))
}

/// How many bytes after the searched part its last character ends.
fn boundary(text: &str) -> usize {
    (0..4).find(|more| text.is_char_boundary(PIECE + SEARCH + more)).unwrap_or(0)
}

/// A document, or a part of one.
struct Piece<'t> {
    path: &'t Path,
    text: &'t str,
    /// The line of a `.jsonl` file that it is.
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
                    .map_err(|error| wrong(format!("is not JSON: {error}"), "mend that line"))?;
                let text = value.get(json_key).and_then(serde_json::Value::as_str).ok_or_else(|| {
                    let fix = "mend that line, or make token files with `trainer tokenize --json-key KEY`";
                    wrong("has no such text".into(), fix)
                })?;
                tokenizer.encode(text)
            }
        };
        encoded.map_err(|error| {
            UserError::new(
                format!("{name}: the tokenizer fails: {error}"),
                "a tokenizer takes any text",
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
