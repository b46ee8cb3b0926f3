//! `trainer profile`: the time of a step by its parts, and the effect of graphs on it.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Arg, ArgAction, ArgMatches, Command};
use common::Mistakes;
use common::terminal::print;
use device::Device;

use super::args::{sets_option, text, text_flag, train_request, with_run_flags};
use super::bench::{case_argument, chosen_case, refuse_files};
use super::report::check_output;
use crate::profile::{measure, page, table};
use trainer::config::plan::RunPlan;
use trainer::config::request::TrainRequest;
use trainer::error::{RunError, file_error};
use trainer::process_group::ProcessGroup;

/// Steps in each scope, unless the command line sets `train.steps`.
const STEPS: usize = 20;

/// The longest that the steps of a scope may take, in seconds.
const PATIENCE: f64 = 10.0;

/// The run to profile, and the form of the output.
#[derive(Clone, Debug)]
pub struct ProfileRequest {
    /// The training run with the steps to measure.
    pub run: TrainRequest,
    /// Steps in each scope.
    pub steps: usize,
    json: bool,
    html: Option<PathBuf>,
}

pub(super) fn command() -> Command {
    let profile = Command::new("profile")
        .about(format!(
            "Measures steps without graphs and in each scope, on random data, and says what graphs gain and what takes the \
             time; takes the flags of a training run. {STEPS} steps a scope unless --steps is given"
        ))
        .arg(case_argument())
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON, with all ranks and all operations"))
        .arg(text_flag("html", "FILE", "Also write a page"));
    with_run_flags(profile)
}

/// The profile that a command line asks for. Everything that is wrong with the flags is added to `mistakes`, also a file that
/// only a training run writes.
pub(super) fn request(matches: &ArgMatches, mistakes: &mut Mistakes) -> ProfileRequest {
    let mut run = train_request(matches, &chosen_case(matches), mistakes);
    mistakes.keep(refuse_files("profile", &run));
    let most = if sets_option(matches, "train.steps") { usize::MAX } else { STEPS };
    let steps = run.config.train.steps.min(most);
    run.config.train.steps = steps;
    run.config.train.epochs = None;
    let html = text(matches, "html").map(PathBuf::from);
    mistakes.keep(html.as_deref().map_or(Ok(()), |file| check_output("--html", "profile.html", file)));
    ProfileRequest { run, steps, json: matches.get_flag("json"), html }
}

/// Measures on all ranks; rank 0 prints.
///
/// # Errors
/// See [`RunError`].
pub(super) fn run(
    request: &ProfileRequest,
    plan: &RunPlan,
    group: &ProcessGroup,
    device: &Device,
) -> Result<(), RunError> {
    let profile = measure(plan, group, device, request.steps, PATIENCE)?;
    if group.rank() > 0 {
        return Ok(());
    }
    if let Some(file) = &request.html {
        std::fs::write(file, page(&profile, SystemTime::now()))
            .map_err(file_error(format!("the page, {}", file.display())))?;
    }
    let text = if request.json { serde_json::to_string_pretty(&profile).unwrap_or_default() } else { table(&profile) };
    print(&text).map_err(file_error("standard output".into()))
}
