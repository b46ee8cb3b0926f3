//! Limits for the length of a line or a document. It is held as a whole, and the data made from it take several times
//! as much.

use std::path::Path;

use common::UserError;
use common::format::bytes;

/// The longest line, and the longest document that is not cut, in bytes: it is tokenised as a whole.
pub(crate) const LONGEST_LINE: usize = 64 << 20;

/// The line that is being read.
#[derive(Default)]
pub(crate) struct Line {
    /// Line breaks before the line.
    number: usize,
    length: usize,
}

impl Line {
    /// Goes on by the given bytes of the file.
    ///
    /// # Errors
    /// The line is too long.
    pub(crate) fn add(&mut self, path: &Path, bytes: &[u8]) -> Result<(), UserError> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.length += part.len();
            if self.length > LONGEST_LINE {
                return Err(too_long(path, self.number + 1));
            }
            if part.ends_with(b"\n") {
                *self = Line { number: self.number + 1, length: 0 };
            }
        }
        Ok(())
    }
}

/// The error for a line that is too long.
pub(crate) fn too_long(path: &Path, line: usize) -> UserError {
    let most = bytes(LONGEST_LINE);
    UserError::new(
        format!("{} line {line} has more than {most}", path.display()),
        format!("a line has at most {most}: it is tokenised as a whole"),
        "break it into several lines, or documents",
    )
}

/// The error for a long document without a place to cut.
pub(crate) fn uncut(path: &Path) -> UserError {
    let most = bytes(LONGEST_LINE);
    UserError::new(
        format!("{} has more than {most} without a place to cut it", path.display()),
        "a long document has ends of lines at which its tokens are the same if it is cut there",
        "break its lines, or write it as several documents, such as lines of .jsonl",
    )
}
