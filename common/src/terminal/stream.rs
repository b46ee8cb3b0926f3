//! The target of standard output and of standard error: a terminal, seen directly or through `trainer launch`, or a
//! file or pipe.

use std::io::{IsTerminal, stderr, stdout};

use anstyle_query::{clicolor, clicolor_force, no_color, term_supports_color};
use rustix::termios::tcgetwinsize;

use super::highlight::highlighted;
use crate::fit::{cut, wrap};

/// Lines are never longer than this: longer ones are hard to read.
const WIDEST: usize = 120;

/// Goes to the beginning of the line and erases the line.
const ERASE: &str = "\r\u{1b}[K";

/// One of the two streams that a process prints to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Output,
    Errors,
}

impl Stream {
    pub(super) const ALL: [Stream; 2] = [Stream::Output, Stream::Errors];

    /// The variable by which `trainer launch` tells ranks the width of the terminal for the ranks' lines. mpirun stands
    /// between: a rank itself sees a pipe, or a terminal of no size.
    pub(super) fn variable(self) -> &'static str {
        match self {
            Stream::Output => "TRAINER_STDOUT_COLUMNS",
            Stream::Errors => "TRAINER_STDERR_COLUMNS",
        }
    }

    /// The width of the terminal that this stream leads to; `None` for a file or a pipe.
    pub(super) fn columns(self) -> Option<usize> {
        let (is_terminal, size) = match self {
            Stream::Output => (stdout().is_terminal(), tcgetwinsize(stdout())),
            Stream::Errors => (stderr().is_terminal(), tcgetwinsize(stderr())),
        };
        let here = size.ok().filter(|_| is_terminal).map(|size| usize::from(size.ws_col));
        let told = || std::env::var(self.variable()).ok()?.parse().ok();
        here.filter(|columns| *columns > 0).or_else(told).filter(|columns| *columns > 0)
    }

    /// How lines look on this stream now. A terminal may change its width at any time.
    pub(super) fn look(self) -> Look {
        let columns = self.columns().map(|columns| columns.min(WIDEST));
        let draws = columns.is_some() && term_supports_color();
        let colours = !no_color() && (clicolor_force() || (draws && clicolor() != Some(false)));
        Look { columns, colours, draws }
    }
}

/// How lines look on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Lines are wrapped to this width.
    pub(super) columns: Option<usize>,
    pub(super) colours: bool,
    /// The terminal can erase a line, so that a status line can stay below all others.
    pub(super) draws: bool,
}

impl Look {
    /// Lines of text for this stream, followed by the status line.
    pub(super) fn lines(self, text: &str, status: &str) -> String {
        let mut shown = String::new();
        if self.draws {
            shown += ERASE;
        }
        for line in text.split('\n') {
            let line = self.columns.map_or_else(|| line.into(), |columns| wrap(line, columns, 2));
            shown += &if self.colours { highlighted(&line) } else { line };
            shown.push('\n');
        }
        if self.draws {
            shown += self.fitted(status);
        }
        shown
    }

    /// The status line in place of the one that is there.
    pub(super) fn status(self, status: &str) -> String {
        format!("{ERASE}{}", self.fitted(status))
    }

    /// Some terminals begin a new line once the last column is written to.
    fn fitted(self, status: &str) -> &str {
        cut(status, self.columns.unwrap_or(WIDEST) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_lines_as_they_are_and_a_terminal_gets_them_wrapped_above_the_status() {
        let text = "notice: one two three four five six seven\nsecond";
        let file = Look { columns: None, colours: false, draws: false };
        assert_eq!(file.lines(text, "50/100"), format!("{text}\n"));
        let terminal = Look { columns: Some(20), colours: false, draws: true };
        let wrapped = "notice: one two\n  three four five\n  six seven\nsecond\n";
        assert_eq!(terminal.lines(text, "50/100"), format!("{ERASE}{wrapped}50/100"));
        assert_eq!(terminal.status("a status line that is too long"), format!("{ERASE}a status line that "));
        let coloured = Look { colours: true, ..terminal };
        assert!(coloured.lines(text, "").starts_with("\r\u{1b}[K\u{1b}[33mnotice:\u{1b}[0m one two\n  three"));
    }
}
