//! `trainer report`: writes a page about runs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use common::files::replace_file;
use common::format::counted;
use common::{Stop, UserError};

use super::args::{text, text_flag};
use super::interruption::interruption;
use crate::page::document::document;
use crate::page::run::Run;
use trainer::error::{RunError, file_error};

/// Seconds between two pages of a run that goes on.
const INTERVAL: u64 = 5;

/// How often a signal is looked for.
const POLL: Duration = Duration::from_millis(50);

/// The runs of a report, and its file.
#[derive(Clone, Debug)]
pub struct ReportRequest {
    runs: Vec<PathBuf>,
    output: PathBuf,
    follow: bool,
}

pub(super) fn command() -> Command {
    Command::new("report")
        .about(
            "Writes an HTML page about runs: curves, graphs, memory plan, timeline, events. The page needs no network",
        )
        .arg(text_flag("output", "FILE", "The page to write").default_value("report.html"))
        .arg(
            Arg::new("follow")
                .long("follow")
                .action(ArgAction::SetTrue)
                .help("Writes the page again every 5 seconds until every run has done all its steps"),
        )
        .arg(
            Arg::new("runs")
                .value_name("RUN")
                .value_parser(NonEmptyStringValueParser::new())
                .num_args(1..)
                .required(true)
                .help("Folders of runs: what --log-dir named, runs/last if it was not set. Several runs are compared"),
        )
}

pub(super) fn request(matches: &ArgMatches) -> ReportRequest {
    ReportRequest {
        runs: matches.get_many::<String>("runs").into_iter().flatten().map(Into::into).collect(),
        output: text(matches, "output").unwrap_or_default().into(),
        follow: matches.get_flag("follow"),
    }
}

/// Writes the page; returns a line about it.
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
