//! Standard output and error. Their readers may go away (`trainer | head`), their disks may be full; neither is a reason to
//! panic, as `println!` does.

use std::io::{ErrorKind, Write, stderr, stdout};

use crate::run::RunError;

/// Prints a line of a run, which goes on where that fails: its files have what it says.
pub fn say(text: &str) {
    let _ = writeln!(stdout(), "{text}");
}

/// Prints a line on standard error, where that can be.
pub fn warn(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

/// Prints what a command was asked for, and a newline.
///
/// # Errors
/// As [`write_to`].
pub fn print(text: &str) -> Result<(), RunError> {
    write_to(&mut stdout(), &format!("{text}\n")).map(|_| ())
}

/// Writes at once what a command was asked for; false where the reader has gone away, having read what it wanted.
///
/// # Errors
/// Any other reason why it cannot be written.
pub fn write_to(out: &mut dyn Write, text: &str) -> Result<bool, RunError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(RunError::File { what: "standard output".into(), error }),
    }
}
