//! The messages of a conversation, a line each: from a person at a terminal, or from a file or a program.

use std::io::BufRead;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use trainer::error::{RunError, file_error};

/// The source of messages.
pub(super) enum Input<'i> {
    /// A terminal. Lines are edited, and the arrow keys bring back earlier ones.
    Terminal(Box<DefaultEditor>),
    /// Lines as they are.
    Lines(&'i mut dyn BufRead),
}

impl<'i> Input<'i> {
    /// An editor of lines on this process's terminal.
    ///
    /// # Errors
    /// The terminal cannot be used so.
    pub(super) fn terminal() -> Result<Input<'i>, RunError> {
        DefaultEditor::new().map(|editor| Input::Terminal(Box::new(editor))).map_err(|error| failed(&error))
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<String>, RunError> {
        match self {
            Input::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // A line that is not kept is only not brought back.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(failed(&error)),
            },
            Input::Lines(lines) => {
                let mut line = String::new();
                let read = lines.read_line(&mut line).map_err(file_error("standard input".into()))?;
                Ok((read > 0).then_some(line))
            }
        }
    }
}

fn failed(error: &ReadlineError) -> RunError {
    file_error("the terminal".into())(std::io::Error::other(error.to_string()))
}
