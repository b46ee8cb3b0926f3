//! A file of UTF-8, read as the segments that threads tokenise.

use std::path::Path;
use std::sync::Arc;

use common::UserError;

use super::json_array::JsonArray;
use super::json_line::JsonLine;
use super::longest::{LONGEST_LINE, Line, too_long, uncut};
use super::records::{RecordPlace, Records};
use super::segment::{Holds, Segment};
use super::text_bytes::{MARK, OtherKind, READ, TextBytes, cannot_be_read, is_parquet, other_kind, unpacked_name};
use crate::formats::data_file::DataFile;
use crate::text::tokenizer::Tokenizer;

/// Smallest size of a segment of a long document, in bytes.
const SEGMENT: usize = 256 << 10;
/// After that many bytes, a place to cut is searched in so many more.
const SEARCH: usize = 64 << 10;
/// How much of a document is searched for a place to cut: a character may lie across the end of the search.
const WINDOW: usize = SEGMENT + SEARCH + 4;

/// The extensions of files of JSON.
const JSON: [&str; 3] = ["jsonl", "ndjson", "json"];

/// Whether a file is text, plain or packed: UTF-8, and JSON lines or a list if it is called `.json`. The inner error gives
/// the reason if it is not.
///
/// # Errors
/// The file cannot be read, is shorter now, is packed and damaged, or holds data of a kind that is not read.
pub(crate) fn check_text(path: &Path, file: &DataFile) -> Result<Result<(), UserError>, UserError> {
    if let Some(OtherKind { error, is_data }) = other_kind(path, file)? {
        return if is_data { Err(error) } else { Ok(Err(error)) };
    }
    let is_object =
        |bytes: &mut TextBytes<'_>| Ok::<_, UserError>(first_line(bytes, None)?.is_some_and(|line| line.is_object));
    let mut bytes = TextBytes::new(path, file)?;
    let is_list = has_extension(path, &JSON) && JsonArray::begins(&mut bytes)?;
    if has_extension(path, &["json"]) && !is_list && !is_object(&mut bytes)? {
        return Ok(Err(UserError::new(
            format!("{} does not begin with a line that is a JSON object", path.display()),
            "a .json file of data is one list of objects, or has one object per line",
            "write one object per line, for example with jq -c, or rename what is plain text to .txt",
        )));
    }
    bytes.fill(READ)?;
    let (mut at, mut line) = (if bytes.has_mark() { MARK.len() } else { 0 }, Line::default());
    loop {
        bytes.fill(READ)?;
        let valid = match std::str::from_utf8(bytes.buffer()) {
            Ok(text) => text.len(),
            // A character that continues in the bytes that follow.
            Err(error) if error.error_len().is_none() && !bytes.is_complete() => error.valid_up_to(),
            Err(error) => return Ok(Err(not_text(path, at + error.valid_up_to()))),
        };
        if !is_list {
            line.add(path, &bytes.buffer()[..valid])?;
        }
        if bytes.is_complete() {
            return Ok(Ok(()));
        }
        at += valid;
        bytes.skip(valid);
    }
}

/// Whether a file has the given records: it is called JSON lines, or its first JSON is one, or it is Parquet.
///
/// # Errors
/// The file cannot be read, or is shorter now.
pub(crate) fn holds_records(path: &Path, file: &DataFile, records: Records<'_>) -> Result<bool, UserError> {
    if has_extension(path, &["jsonl", "ndjson"]) || is_parquet(path, file)? {
        return Ok(true);
    }
    match TextBytes::new(path, file).and_then(|bytes| begins_with(path, bytes, records)) {
        Ok(has_records) => Ok(has_records),
        // A packed file that is damaged is found when it is read.
        Err(_) => Ok(false),
    }
}

/// The segments of a file, from first to last.
pub(crate) struct TextReader<'f> {
    path: Arc<Path>,
    bytes: TextBytes<'f>,
    tokenizer: &'f Tokenizer,
    layout: Layout,
}

/// The division of a file into segments.
enum Layout {
    /// The text is one document.
    Document {
        /// Whether the last segment was returned.
        ended: bool,
    },
    /// Each line is a record.
    Lines {
        /// Lines read so far.
        read: usize,
    },
    /// Each item of a list is a record.
    List(JsonArray),
}

impl<'f> TextReader<'f> {
    /// A reader of a file that [`check_text`] has found to be text. It has JSON if its name says so, or if its first line
    /// is such a record.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter now.
    pub(crate) fn new(
        path: &'f Path,
        file: &'f DataFile,
        tokenizer: &'f Tokenizer,
        records: Records<'_>,
    ) -> Result<TextReader<'f>, UserError> {
        let mut bytes = TextBytes::new(path, file)?;
        let is_json = has_extension(path, &JSON);
        let layout = if is_json && JsonArray::begins(&mut bytes)? {
            Layout::List(JsonArray::new())
        } else if is_json || first_line(&mut bytes, records.text_key())?.is_some_and(|line| records.include(&line)) {
            Layout::Lines { read: 0 }
        } else {
            bytes.fill(1)?;
            // An empty file is not a document.
            Layout::Document { ended: bytes.buffer().is_empty() }
        };
        Ok(TextReader { path: path.into(), bytes, tokenizer, layout })
    }

    /// Whether the file begins with a mark of the byte order, which is left out.
    pub(crate) fn has_mark(&self) -> bool {
        self.bytes.has_mark()
    }

    /// The next segment.
    ///
    /// # Errors
    /// The file cannot be read, is shorter now, or is no longer text.
    pub(crate) fn next(&mut self) -> Result<Option<Segment>, UserError> {
        match &mut self.layout {
            Layout::Document { ended: true } => Ok(None),
            Layout::Document { ended: false } => self.next_part(),
            Layout::Lines { read } => {
                let read = *read;
                self.next_line(read)
            }
            Layout::List(list) => {
                let item = list.next(&self.path, &mut self.bytes)?;
                Ok(item.map(|(line, text)| Segment::record(&self.path, RecordPlace::Line(line), text)))
            }
        }
    }

    /// The next line that is not blank, after `lines` lines.
    fn next_line(&mut self, mut lines: usize) -> Result<Option<Segment>, UserError> {
        loop {
            let mut searched = 0;
            let end = loop {
                let rest = &self.bytes.buffer()[searched..];
                if let Some(found) = rest.iter().position(|byte| *byte == b'\n') {
                    break searched + found + 1;
                }
                searched += rest.len();
                if self.bytes.is_complete() {
                    break searched;
                }
                if searched > LONGEST_LINE {
                    return Err(too_long(&self.path, lines + 1));
                }
                self.bytes.fill(searched + READ)?;
            };
            if end == 0 {
                return Ok(None);
            }
            lines += 1;
            let text = self.text(end)?;
            if !text.trim().is_empty() {
                self.layout = Layout::Lines { read: lines };
                return Ok(Some(Segment::record(&self.path, RecordPlace::Line(lines), text)));
            }
        }
    }

    /// The next part of a file that is one document.
    fn next_part(&mut self) -> Result<Option<Segment>, UserError> {
        if self.bytes.buffer().len() < WINDOW {
            self.bytes.fill(WINDOW + READ)?;
        }
        let window = &self.bytes.buffer()[..self.bytes.buffer().len().min(WINDOW)];
        let window = match std::str::from_utf8(window) {
            Ok(text) => text,
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&window[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => return Err(cannot_be_read(&self.path, NOT_TEXT_NOW)),
        };
        let (end, ends_document) = match cut(window, self.tokenizer) {
            Some(at) => (at, false),
            None => {
                self.bytes.fill(LONGEST_LINE + 1)?;
                if !self.bytes.is_complete() {
                    return Err(uncut(&self.path));
                }
                (self.bytes.buffer().len(), true)
            }
        };
        self.layout = Layout::Document { ended: ends_document };
        let text = self.text(end)?;
        Ok(Some(Segment { path: self.path.clone(), text, holds: Holds::Text, place: None, ends_document }))
    }

    fn text(&mut self, end: usize) -> Result<String, UserError> {
        String::from_utf8(self.bytes.take(end)).map_err(|_| cannot_be_read(&self.path, NOT_TEXT_NOW))
    }
}

const NOT_TEXT_NOW: &str = "it was UTF-8 text when it was opened and is not now";

/// Whether the file, unpacked, has one of the given extensions.
pub(crate) fn has_extension(path: &Path, known: &[&str]) -> bool {
    unpacked_name(path).extension().is_some_and(|extension| known.iter().any(|known| extension == *known))
}

/// Whether the first line is such a record, or the first item of a list in a file that is called JSON.
fn begins_with(path: &Path, mut bytes: TextBytes<'_>, records: Records<'_>) -> Result<bool, UserError> {
    let first = if has_extension(path, &JSON) && JsonArray::begins(&mut bytes)? {
        let item = JsonArray::new().next(path, &mut bytes)?;
        item.and_then(|(_, item)| JsonLine::read(item.as_bytes(), records.text_key()).ok())
    } else {
        first_line(&mut bytes, records.text_key())?
    };
    Ok(first.is_some_and(|line| records.include(&line)))
}

/// The first line that is not blank, if that line is JSON. A line that does not begin as an object is not read to its
/// end, nor is one that is too long.
fn first_line(bytes: &mut TextBytes<'_>, key: Option<&str>) -> Result<Option<JsonLine>, UserError> {
    let mut wanted = READ;
    loop {
        bytes.fill(wanted)?;
        let line = bytes.buffer().trim_ascii_start();
        let end = line.iter().position(|byte| *byte == b'\n');
        if line.first().is_some_and(|byte| *byte != b'{') || wanted > LONGEST_LINE {
            return Ok(None);
        }
        if bytes.is_complete() || end.is_some() && !line.is_empty() {
            return Ok(JsonLine::read(&line[..end.unwrap_or(line.len())], key).ok());
        }
        wanted *= 2;
    }
}

/// The error for a file that is not text from byte `at` on.
fn not_text(path: &Path, at: usize) -> UserError {
    let what = format!("{} is not UTF-8 text (byte {at})", path.display());
    if has_extension(path, &["jsonl", "ndjson"]) {
        let fix = "write it again, or convert it with iconv";
        return UserError::new(what, "a file of JSON lines is UTF-8 text with one JSON object per line", fix);
    }
    let extension = path.extension().map_or("none".into(), |text| format!(".{}", text.display()));
    let unknown = match &*extension {
        ".txt" | ".text" | ".md" => String::new(),
        other => format!(" and its extension, {other}, is unknown"),
    };
    UserError::new(
        format!("{what}{unknown}"),
        "data are UTF-8 text or .jsonl, plain or packed with gzip or zstd, token files .bin, or Megatron's .bin with .idx",
        "unpack it, convert it with iconv, or write its text to .jsonl",
    )
}

/// The place to cut a long text. `text` has its first [`WINDOW`] bytes or nearly so. `None` if the text is short, or no
/// end of line nearby is a good place.
fn cut(text: &str, tokenizer: &Tokenizer) -> Option<usize> {
    if text.len() <= SEGMENT + SEARCH {
        return None;
    }
    let bytes = text.as_bytes();
    let blank = |byte: u8| byte.is_ascii_whitespace() || !byte.is_ascii();
    // Both lines have a visible character at the cut: tokenizers join runs of white space.
    let place = |at: &usize| bytes[at - 1] == b'\n' && !blank(bytes[at - 2]) && !blank(bytes[*at]);
    (SEGMENT..SEGMENT + SEARCH)
        .filter(place)
        .take(16)
        .find(|at| tokenizer.separates(&text[..SEGMENT + SEARCH + boundary(text)], *at))
}

/// How many bytes of the last searched character lie after the searched part.
fn boundary(text: &str) -> usize {
    (0..4).find(|more| text.is_char_boundary(SEGMENT + SEARCH + more)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The segments of a file with that content.
    fn segments(name: &str, content: impl AsRef<[u8]>) -> Vec<Segment> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let file = DataFile::open(&path).unwrap();
        check_text(&path, &file).unwrap().unwrap();
        let mut reader = TextReader::new(&path, &file, &Tokenizer::Bytes, Records::Documents("text")).unwrap();
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(content).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn packed_files_are_the_text_that_was_packed() {
        let lines: String = (0..200_000).map(|at| format!("{{\"text\": \"line {at} with an é\"}}\n")).collect();
        let (first, rest) = lines.as_bytes().split_at(777_777);
        let zstd = |content: &[u8]| zstd::encode_all(content, 1).unwrap();
        let expected = texts_of(&segments("x.jsonl", &lines));
        for packed in [gzip(lines.as_bytes()), zstd(lines.as_bytes()), [gzip(first), gzip(rest)].concat()] {
            // Whatever it is called; a file may be several packed ones, one after the other.
            for name in ["x.jsonl.gz", "x.jsonl.zst", "x.jsonl", "x"] {
                assert!(texts_of(&segments(name, &packed)) == expected, "{name}");
            }
        }
        assert!(texts_of(&segments("x", [zstd(first), zstd(rest)].concat())) == expected);
        let text = "words and words\n".repeat(4 * SEGMENT / 16);
        assert_eq!(texts_of(&segments("x.txt.gz", gzip(text.as_bytes()))).concat(), text);
        assert!(segments("x.gz", gzip(b"")).is_empty());
    }

    #[test]
    fn packed_files_that_are_cut_or_changed_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let text = "words and other words\n".repeat(200_000);
        for whole in [gzip(text.as_bytes()), zstd::encode_all(text.as_bytes(), 1).unwrap()] {
            let mut changed = whole.clone();
            changed[whole.len() / 2] ^= 0xff;
            for (name, content) in [("cut.txt.gz", &whole[..whole.len() / 2]), ("changed.txt.gz", &changed[..])] {
                let path = folder.path().join(name);
                std::fs::write(&path, content).unwrap();
                // A file that unpacks to other bytes is not text, or has a wrong checksum.
                let error = match check_text(&path, &DataFile::open(&path).unwrap()) {
                    Err(error) | Ok(Err(error)) => error.to_string(),
                    Ok(Ok(())) => panic!("{name} was taken"),
                };
                assert!(error.contains(name), "{error}");
                assert!(name != "cut.txt.gz" || error.contains("cannot be unpacked"), "{error}");
            }
        }
    }

    #[test]
    fn data_of_kinds_that_are_not_read_are_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        for (begin, says) in [
            (&b"ARROW1\0\0"[..], ["is an Arrow file", "read_feather"]),
            (b"BZh91AY&SY", ["is packed with bzip2", "unpack it"]),
            (&[&[b'x'; 257], &b"ustar"[..]].concat(), ["is a tar archive", "unpack it"]),
            (&gzip(&[&[b'x'; 257], &b"ustar"[..]].concat()), ["is a tar archive", "unpack it"]),
            (b"\xfd7zXZ\0\0\0", ["is packed with xz", "gzip or zstd"]),
            (b"PK\x03\x04\0", ["is packed with zip", "unpack it"]),
        ] {
            let path = folder.path().join("part");
            std::fs::write(&path, begin).unwrap();
            let error = match check_text(&path, &DataFile::open(&path).unwrap()) {
                Err(error) | Ok(Err(error)) => error.to_string(),
                Ok(Ok(())) => panic!("{says:?}: taken for text"),
            };
            assert!(says.iter().all(|part| error.contains(part)), "{error}");
        }
        // Text that begins in the same way.
        for text in ["PAR1 is a word", "BZh9 too", "ARROW1 as well"] {
            assert_eq!(texts(&segments("x.txt", text)), [text]);
        }
    }

    fn texts_of(segments: &[Segment]) -> Vec<String> {
        segments.iter().map(|segment| segment.text.clone()).collect()
    }

    fn texts(segments: &[Segment]) -> Vec<&str> {
        segments.iter().map(|segment| segment.text.as_str()).collect()
    }

    #[test]
    fn a_long_document_is_cut_into_pieces_that_make_it_up() {
        let line = "some words, é among them, of a line that is not very long\n";
        let text = line.repeat(9 * SEGMENT / line.len());
        let segments = segments("x.txt", &text);
        assert!(segments.len() >= 7 && segments.iter().rev().skip(1).all(|segment| segment.text.ends_with('\n')));
        assert_eq!(texts(&segments).concat(), text);
        let ends: Vec<bool> = segments.iter().map(|segment| segment.ends_document).collect();
        assert_eq!(ends.iter().position(|end| *end), Some(ends.len() - 1));
    }

    #[test]
    fn text_without_a_good_place_is_not_cut_and_text_of_no_bytes_is_no_document() {
        for text in ["no lines ".repeat(SEGMENT), "é\n\n".repeat(SEGMENT)] {
            assert_eq!(texts(&segments("x", &text)), [text]);
        }
        assert!(segments("x", "").is_empty());
    }

    #[test]
    fn lines_of_any_length_are_pieces_with_their_numbers_and_blank_lines_are_none() {
        let long = "é".repeat(READ);
        let content = format!("a\n\n{long}\n \t\nb\r\nlast");
        let segments = segments("x.jsonl", &content);
        assert_eq!(texts(&segments), ["a\n", &format!("{long}\n"), "b\r\n", "last"]);
        assert_eq!(
            segments.iter().map(|segment| segment.place).collect::<Vec<_>>(),
            [1, 3, 5, 6].map(|at| Some(RecordPlace::Line(at)))
        );
    }

    #[test]
    fn json_lines_are_known_by_their_first_line_whatever_the_file_is_called() {
        let lines = "\n {\"text\": \"a\"}\n{\"text\": \"b\"}\n";
        for name in ["x.json", "x.ndjson", "x.jsonl", "x.txt", "x"] {
            assert_eq!(segments(name, lines).len(), 2, "{name}");
        }
        let long = format!("{{\"text\": \"{}\"}}\n{{}}", "é".repeat(2 * READ));
        assert_eq!(segments("x", &long).len(), 2);
        // Plain text: no object, another key, an object over several lines, a list.
        for text in ["{a}\n{b}", "{\"body\": \"a\"}\n", "{\n\"text\": \"a\"}", "[1]\n[2]", "{\"text\": 1}\n"] {
            assert_eq!(texts(&segments("x.txt", text)), [text]);
        }
    }

    #[test]
    fn a_json_file_that_has_no_object_per_line_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        for text in ["\"a\"", "{\n  \"text\": \"a\"\n}\n", "words", ""] {
            std::fs::write(&path, text).unwrap();
            let error = check_text(&path, &DataFile::open(&path).unwrap()).unwrap().unwrap_err();
            assert!(error.what.contains("does not begin with a line that is a JSON object"), "{error}");
        }
    }

    #[test]
    fn text_that_ends_within_a_character_or_has_a_wrong_byte_far_inside_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.txt");
        let problem = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            let file = DataFile::open(&path).unwrap();
            check_text(&path, &file).unwrap().err().map_or(String::new(), |error| error.what)
        };
        let text = "é".repeat(2 * READ).into_bytes();
        assert_eq!(problem(&text), "");
        assert!(problem(&text[..text.len() - 1]).contains(&format!("byte {}", text.len() - 2)));
        let mut wrong = [b"x", &text[..]].concat();
        wrong[2 * READ] = 0xff;
        assert!(problem(&wrong).contains(&format!("byte {}", 2 * READ - 1)), "{}", problem(&wrong));
    }

    #[test]
    fn a_file_that_shrinks_or_stops_being_text_while_it_is_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.txt");
        let text = "a line of the text\n".repeat(4 * READ / 19);
        for spoil in [b"\xff".repeat(text.len()), text.as_bytes()[..100].to_vec()] {
            std::fs::write(&path, &text).unwrap();
            let file = DataFile::open(&path).unwrap();
            check_text(&path, &file).unwrap().unwrap();
            let mut reader = TextReader::new(&path, &file, &Tokenizer::Bytes, Records::Documents("text")).unwrap();
            assert!(reader.next().unwrap().is_some());
            std::fs::write(&path, spoil).unwrap();
            let error = std::iter::from_fn(|| reader.next().transpose()).find_map(Result::err).unwrap();
            assert!(error.to_string().contains("Rule: data do not change while they are read"), "{error}");
        }
    }
}
