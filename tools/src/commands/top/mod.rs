//! `trainer top`: a live view of a run in the terminal.

mod screen;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use common::UserError;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, size};
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};

use super::args::path;
use crate::page::live::Live;
use trainer::error::{RunError, file_error};

/// How often the run's files are read.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most columns and lines that are drawn. A terminal may say that it has 65,535 of each, whose cells fill no memory.
const LARGEST: (u16, u16) = (1000, 500);

/// The run of `trainer top`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// Folder of the run: what --log-dir named.
    #[arg(value_name = "RUN", default_value = "runs/last", value_parser = path())]
    pub(super) run: PathBuf,
}

/// Shows the run until `q` is pressed.
///
/// # Errors
/// A folder that is not that of a run; no terminal.
pub(super) fn run(folder: &Path) -> Result<String, RunError> {
    let mut live = Live::open(folder)?;
    if !stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(UserError::new(
            "trainer top without a terminal",
            "it draws on the terminal that it is started in, and reads keys there",
            format!("for a file use trainer report {}", folder.display()),
        )
        .into());
    }
    let failed = || file_error("the terminal".into());
    let viewport = Viewport::Fixed(area().map_err(failed())?);
    let mut terminal = ratatui::try_init_with_options(TerminalOptions { viewport }).map_err(failed())?;
    let mut drawn = Rect::default();
    let shown = execute!(stdout(), EnterAlternateScreen).and_then(|()| {
        loop {
            if drawn != area()? {
                drawn = area()?;
                terminal.resize(drawn)?;
            }
            terminal.draw(|frame| screen::draw(frame, &live, SystemTime::now()))?;
            if ends(INTERVAL)? {
                return Ok(());
            }
            live.refresh();
        }
    });
    ratatui::restore();
    shown.map_err(failed())?;
    Ok(format!("{}: step {}", live.name(), live.metrics.last_step()))
}

/// The part of the terminal that is drawn.
fn area() -> std::io::Result<Rect> {
    let ((columns, lines), (most_columns, most_lines)) = (size()?, LARGEST);
    Ok(Rect::new(0, 0, columns.min(most_columns), lines.min(most_lines)))
}

/// Waits that long for a key; whether the key ends the view. A new size of the terminal ends the wait.
fn ends(wait: Duration) -> std::io::Result<bool> {
    let since = Instant::now();
    while event::poll(wait.saturating_sub(since.elapsed()))? {
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(true);
                }
            }
            Event::Resize(..) => break,
            _ => {}
        }
    }
    Ok(false)
}
