//! `trainer report`: writes a page about runs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use common::files::replace_file;
use common::format::counted;
use common::{Stop, UserError};

use super::args::path;
use super::interruption::interruption;
use crate::page::document::document;
use crate::page::run::Run;
use trainer::error::{RunError, file_error};

/// Seconds between two pages of a run that goes on.
const INTERVAL: u64 = 5;

/// How often a signal is looked for.
const POLL: Duration = Duration::from_millis(50);

/// The runs of a report, and its file.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct ReportRequest {
    /// The page to write.
    #[arg(long, value_name = "FILE", default_value = "report.html", value_parser = path())]
    output: PathBuf,
    /// Writes the page again every 5 seconds until every run has done all its steps.
    #[arg(long)]
    follow: bool,
    /// Folders of runs: what --log-dir named, runs/last if it was not set. Several runs are compared.
    #[arg(value_name = "RUN", num_args = 1.., required = true, value_parser = path())]
    runs: Vec<PathBuf>,
}

/// Writes the report's page; returns a line about the page.
///
/// # Errors
/// A folder that is not that of a run; a page that cannot be written.
pub(super) fn run(request: &ReportRequest) -> Result<String, RunError> {
    let ReportRequest { runs, output, follow } = request;
    check_output("--output", "report.html", output)?;
    let stop = if *follow { interruption()? } else { Stop::default() };
    loop {
        let read: Vec<Run> = runs.iter().map(|folder| Run::read(folder)).collect::<Result<_, UserError>>()?;
        let goes_on = *follow && !stop.is_asked() && !read.iter().all(Run::is_done);
        let page = document(&read, SystemTime::now(), goes_on.then_some(INTERVAL));
        write(output, &page).map_err(file_error(format!("the page, {}", output.display())))?;
        if !goes_on {
            let steps: u64 = read.iter().map(Run::steps).sum();
            let (runs, steps) = (counted(read.len(), "run"), counted(steps as usize, "step"));
            return Ok(format!("{}: {runs}, {steps}", output.display()));
        }
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(INTERVAL) && !stop.is_asked() {
            sleep(POLL);
        }
    }
}

/// Fails on a flag's value that cannot be a file, before other work.
pub(super) fn check_output(flag: &str, example: &str, output: &Path) -> Result<(), UserError> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let problem = match folder {
        _ if output.is_dir() => "is a folder",
        Some(folder) if !folder.is_dir() => "is in a folder that does not exist",
        _ => return Ok(()),
    };
    let rule = "it is a file in a folder that exists";
    Err(UserError::new(
        format!("{flag} {} {problem}", output.display()),
        rule,
        format!("name such a file, such as {example}"),
    ))
}

fn write(output: &Path, page: &str) -> std::io::Result<()> {
    replace_file(output, |file| file.write_all(page.as_bytes())).map(drop)
}
