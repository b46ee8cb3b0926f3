//! Records in a list: a file whose JSON is `[{...}, {...}]`, on one line or on many.

use std::path::Path;

use common::UserError;

use super::longest::{LONGEST_LINE, too_long};
use super::text_bytes::{READ, TextBytes, cannot_be_read};

/// The items of a list, read one by one.
pub(crate) struct JsonArray {
    /// Line breaks before the next byte.
    lines: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before `[`.
    Begin,
    /// Behind `[`.
    First,
    /// Behind an item.
    Behind,
    /// Behind `,`.
    Next,
    /// Behind `]`.
    End,
}

impl JsonArray {
    /// A list that was not read yet.
    pub(crate) fn new() -> JsonArray {
        JsonArray { lines: 0, state: State::Begin }
    }

    /// Whether the given bytes begin a list.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn begins(bytes: &mut TextBytes<'_>) -> Result<bool, UserError> {
        bytes.fill(READ)?;
        Ok(bytes.buffer().trim_ascii_start().starts_with(b"["))
    }

    /// The next item, and the number of the line in which the item begins. `None` behind the last.
    ///
    /// # Errors
    /// The file cannot be read; something other than an item; a list that does not end.
    pub(crate) fn next(
        &mut self,
        path: &Path,
        bytes: &mut TextBytes<'_>,
    ) -> Result<Option<(usize, String)>, UserError> {
        loop {
            let Some(byte) = self.skip_blanks(bytes)? else {
                return if self.state == State::End {
                    Ok(None)
                } else {
                    Err(self.wrong(path, "ends inside of its list"))
                };
            };
            self.state = match (self.state, byte) {
                (State::Begin, b'[') => State::First,
                (State::First | State::Behind, b']') => State::End,
                (State::Behind, b',') => State::Next,
                (State::First | State::Next, _) => break,
                (State::Begin | State::Behind | State::End, _) => {
                    return Err(
                        self.wrong(path, "is no list of JSON: items stand between `[` and `]`, with `,` between them")
                    );
                }
            };
            bytes.skip(1);
        }
        let end = item_end(bytes)?;
        let line = self.lines + 1;
        if end.is_some_and(|end| end > LONGEST_LINE) {
            return Err(too_long(path, line));
        }
        let Some(end) = end.filter(|end| *end > 0) else {
            return Err(self.wrong(path, "has no item, or one that does not end within 64 MiB"));
        };
        let item = bytes.take(end);
        self.lines += item.iter().filter(|byte| **byte == b'\n').count();
        self.state = State::Behind;
        let item = String::from_utf8(item)
            .map_err(|_| cannot_be_read(path, "it was UTF-8 text when it was opened and is not now"))?;
        Ok(Some((line, item)))
    }

    /// Skips white space. Returns the next byte, and leaves it in the buffer.
    fn skip_blanks(&mut self, bytes: &mut TextBytes<'_>) -> Result<Option<u8>, UserError> {
        loop {
            let blanks = bytes.buffer().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.lines += bytes.buffer()[..blanks].iter().filter(|byte| **byte == b'\n').count();
            bytes.skip(blanks);
            match bytes.buffer().first() {
                Some(byte) => return Ok(Some(*byte)),
                None if bytes.is_complete() => return Ok(None),
                None => bytes.fill(READ)?,
            }
        }
    }

    fn wrong(&self, path: &Path, problem: &str) -> UserError {
        UserError::new(
            format!("{} line {} {problem}", path.display(), self.lines + 1),
            "a .json file of data is one list of objects, or has one object per line",
            "write the file again",
        )
    }
}

/// The end of the item at the start of the buffer. `None` if the file ends before, or the item is far too long.
fn item_end(bytes: &mut TextBytes<'_>) -> Result<Option<usize>, UserError> {
    let (mut at, mut depth, mut in_text, mut escaped) = (0, 0usize, false, false);
    loop {
        for &byte in &bytes.buffer()[at..] {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_text => escaped = true,
                b'"' => in_text = !in_text,
                _ if in_text => {}
                b'{' | b'[' => depth += 1,
                // A number or a word ends before what follows it.
                b',' | b']' | b'}' if depth == 0 => return Ok(Some(at)),
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(Some(at + 1));
                    }
                }
                _ => {}
            }
            at += 1;
        }
        if bytes.is_complete() || at > LONGEST_LINE {
            return Ok(None);
        }
        bytes.fill(at + READ)?;
    }
}
