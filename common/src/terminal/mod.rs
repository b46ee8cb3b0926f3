//! Standard output and standard error. Their reader may go away (`trainer | head`) and their disk may be full; neither is
//! a reason to panic, as `println!` does. Their reader may also stop to read; that is no reason to wait for ever.
//!
//! On a terminal, lines are wrapped to its width, a few words are coloured, and one status line can stay below all others.
//! Files and pipes get lines as they are.

mod highlight;
mod stream;

use std::io::{ErrorKind, Result, Write, stderr, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use self::highlight::is_error;
use self::stream::Stream;
use crate::escape::visible;

/// The `tracing` target of lines that were printed already: these go to log files only.
pub const PRINTED: &str = "run";

/// How long a line may take to be written.
const PATIENCE: Duration = Duration::from_secs(1);

static OUTPUT: LazyLock<Mutex<Printer>> = LazyLock::new(|| Mutex::new(Printer::new(stdout())));
static ERRORS: LazyLock<Mutex<Printer>> = LazyLock::new(|| Mutex::new(Printer::new(stderr())));

/// The line below all others. Empty: there is none.
static STATUS: Mutex<String> = Mutex::new(String::new());

/// Prints a line of a run. The run goes on if that fails, or takes longer than a second: its files have the line too.
/// While nobody reads, further lines are left out.
pub fn say(text: &str) {
    print_line(Stream::Output, text);
}

/// Prints a line on standard error, if that is possible. As [`say`], it does not wait for a reader that has stopped.
pub fn warn(text: &str) {
    print_line(Stream::Errors, text);
}

/// Shows a status line below all others, in place of the status line before, if a terminal reads; an empty text removes
/// the status line. An error removes it too.
pub fn status(text: &str) {
    let text = visible(text);
    let before = std::mem::replace(&mut *locked(&STATUS), text.clone());
    if before == text {
        return;
    }
    if let Some((stream, look)) = Stream::ALL.map(|stream| (stream, stream.look())).iter().find(|(_, look)| look.draws)
    {
        printer(*stream).print(look.status(&text));
    }
}

/// Whether a status line can be seen.
pub fn shows_status() -> bool {
    Stream::ALL.iter().any(|stream| stream.look().draws)
}

/// The most columns for a line of [`say`]; `None` if the lines go to a file or a pipe.
pub fn columns() -> Option<usize> {
    Stream::Output.look().columns
}

/// The variables that tell ranks below this process about the terminal for the ranks' lines.
pub fn for_ranks() -> Vec<(&'static str, String)> {
    let told = Stream::ALL.iter().filter_map(|stream| Some((stream.variable(), stream.columns()?.to_string())));
    told.collect()
}

fn print_line(stream: Stream, text: &str) {
    let text = visible(text);
    let status = {
        let mut status = locked(&STATUS);
        if is_error(&text) {
            status.clear();
        }
        status.clone()
    };
    printer(stream).print(stream.look().lines(&text, &status));
}

fn printer(stream: Stream) -> MutexGuard<'static, Printer> {
    match stream {
        Stream::Output => locked(&OUTPUT),
        Stream::Errors => locked(&ERRORS),
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes lines on a separate thread. Only this thread may be held up.
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

    fn print(&mut self, text: String) {
        self.held_up = self.held_up && self.written.try_recv().is_err();
        if !self.held_up && self.lines.send(text).is_ok() {
            self.held_up = self.written.recv_timeout(PATIENCE).is_err();
        }
    }
}

/// Prints the result of a command, and a newline.
///
/// # Errors
/// As [`write_to`].
pub fn print(text: &str) -> Result<()> {
    write_to(&mut stdout(), &format!("{}\n", visible(text))).map(|_| ())
}

/// Standard output as a terminal. Characters that a terminal would act on are escaped, line breaks and tabs excepted.
pub struct Screen;

impl Write for Screen {
    /// Callers write text, so every character arrives whole.
    fn write(&mut self, text: &[u8]) -> Result<usize> {
        stdout().write_all(visible(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> Result<()> {
        stdout().flush()
    }
}

/// Writes text unchanged, and flushes `out`. Returns false if the reader has gone away: it has read all it wanted.
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
        printer.print("first\n".into());
        // More than any buffer holds.
        printer.print("x".repeat(64 << 20) + "\n");
        assert!(printer.held_up);
        let begun = Instant::now();
        for _ in 0..10_000 {
            printer.print("left out\n".into());
        }
        assert!(begun.elapsed() < Duration::from_secs(100), "ten thousand lines that nobody waits for");
        let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
        assert_eq!((lines.next().unwrap().as_str(), lines.next().unwrap().len()), ("first", 64 << 20));
        while printer.held_up {
            printer.print("last\n".into());
        }
        assert_eq!(lines.next().unwrap(), "last");
    }
}
