//! Standard output and standard error. Their reader may go away (`trainer | head`) and their disk may be full; neither is
//! a reason to panic, as `println!` does.

use std::io::{ErrorKind, Result, Write, stderr, stdout};

use crate::escape::for_terminal;

/// The `tracing` target of lines that were printed already: these go to log files only.
pub const PRINTED: &str = "run";

/// Prints a line of a run. The run goes on if that fails: its files have the line too.
pub fn say(text: &str) {
    let _ = writeln!(stdout(), "{}", for_terminal(text));
}

/// Prints a line on standard error, if that is possible.
pub fn warn(text: &str) {
    let _ = writeln!(stderr(), "{}", for_terminal(text));
}

/// Prints the result of a command, and a newline.
///
/// # Errors
/// As [`write_to`].
pub fn print(text: &str) -> Result<()> {
    write_to(&mut stdout(), &format!("{}\n", for_terminal(text))).map(|_| ())
}

/// Standard output as a terminal. What a terminal would act on is escaped, line breaks and tabs excepted.
pub struct Screen;

impl Write for Screen {
    /// Characters are whole in what callers write: they write text.
    fn write(&mut self, text: &[u8]) -> Result<usize> {
        stdout().write_all(for_terminal(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> Result<()> {
        stdout().flush()
    }
}

/// Writes text as it is and flushes it. Returns false if the reader has gone away: it has read all it wanted.
///
/// # Errors
/// Any other reason why the text cannot be written.
pub fn write_to(out: &mut dyn Write, text: &str) -> Result<bool> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
