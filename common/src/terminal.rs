//! Standard output and standard error. Their reader may go away (`trainer | head`) and their disk may be full; neither is
//! a reason to panic, as `println!` does. Their reader may also stop to read; that is no reason to wait for ever.

use std::io::{ErrorKind, Result, Write, stderr, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::escape::for_terminal;

/// The `tracing` target of lines that were printed already: these go to log files only.
pub const PRINTED: &str = "run";

/// How long a line may take to be written.
const PATIENCE: Duration = Duration::from_secs(1);

static OUTPUT: LazyLock<Mutex<Printer>> = LazyLock::new(|| Mutex::new(Printer::new(stdout())));
static ERRORS: LazyLock<Mutex<Printer>> = LazyLock::new(|| Mutex::new(Printer::new(stderr())));

/// Prints a line of a run. The run goes on if that fails, or takes longer than a second: its files have the line too.
/// While nobody reads, further lines are left out.
pub fn say(text: &str) {
    OUTPUT.lock().unwrap_or_else(PoisonError::into_inner).print(&for_terminal(text));
}

/// Prints a line on standard error, if that is possible. As [`say`], it does not wait for a reader that has stopped.
pub fn warn(text: &str) {
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner).print(&for_terminal(text));
}

/// Writes lines on a thread of its own, which may be held up.
struct Printer {
    lines: Sender<String>,
    written: Receiver<()>,
    /// A line is being written for longer than [`PATIENCE`].
    held_up: bool,
}

impl Printer {
    fn new(mut out: impl Write + Send + 'static) -> Printer {
        let ((lines, next), (done, written)) = (channel::<String>(), channel());
        // Without a thread nothing is printed.
        let _ = Builder::new().name("printer".into()).spawn(move || {
            for line in next {
                let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
                let _ = done.send(());
            }
        });
        Printer { lines, written, held_up: false }
    }

    fn print(&mut self, text: &str) {
        self.held_up = self.held_up && self.written.try_recv().is_err();
        if !self.held_up && self.lines.send(format!("{text}\n")).is_ok() {
            self.held_up = self.written.recv_timeout(PATIENCE).is_err();
        }
    }
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_reader_that_stops_holds_up_one_line_for_a_second_and_gets_the_lines_after_it_reads_again() {
        let (writer, reader) = UnixStream::pair().unwrap();
        let mut printer = Printer::new(writer);
        printer.print("first");
        // More than any buffer holds.
        printer.print(&"x".repeat(64 << 20));
        assert!(printer.held_up);
        let begun = Instant::now();
        for _ in 0..10_000 {
            printer.print("left out");
        }
        assert!(begun.elapsed() < Duration::from_secs(100), "ten thousand lines that nobody waits for");
        let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
        assert_eq!((lines.next().unwrap().as_str(), lines.next().unwrap().len()), ("first", 64 << 20));
        while printer.held_up {
            printer.print("last");
        }
        assert_eq!(lines.next().unwrap(), "last");
    }
}
