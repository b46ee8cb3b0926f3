//! How much text a file holds: a small one that unpacks to very much was made to fill memory or disks.

use common::UserError;
use common::format::bytes;

/// The most bytes of text for each byte of a file. gzip reaches 1,032, and text that people write 10.
const RATIO: u64 = 1000;
/// Bytes of text that any file may have.
const ALWAYS: u64 = 64 << 20;

/// The bytes that were unpacked so far, and the most that may be.
pub(crate) struct Unpacked {
    bytes: u64,
    most: u64,
}

impl Unpacked {
    /// None of a file of `len` bytes.
    pub(crate) fn of(len: u64) -> Unpacked {
        Unpacked { bytes: 0, most: len.saturating_mul(RATIO).max(ALWAYS) }
    }

    /// Counts some more.
    ///
    /// # Errors
    /// The file, called `name`, holds too much.
    pub(crate) fn add(&mut self, name: &str, more: u64) -> Result<(), UserError> {
        self.bytes += more;
        if self.bytes <= self.most {
            return Ok(());
        }
        Err(UserError::new(
            format!("{name} unpacks to more than {}", bytes(self.most as usize)),
            format!("a packed file holds at most {RATIO} times its size of text, or {}", bytes(ALWAYS as usize)),
            "unpack it yourself, if you know what it holds",
        ))
    }
}
