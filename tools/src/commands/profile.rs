//! `trainer profile`: the time of a step by its parts, and the effect of graphs on it.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use common::Mistakes;
use common::terminal::print;
use device::Device;

use super::args::path;
use super::bench::{self, BenchRequest};
use super::report::check_output;
use crate::profile::{measure, page, table};
use trainer::config::plan::RunPlan;
use trainer::config::request::TrainRequest;
use trainer::error::{RunError, file_error};
use trainer::process_group::ProcessGroup;

/// Steps in each scope, unless the command line sets `train.steps`.
pub(super) const STEPS: usize = 20;

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

/// The flags of `trainer profile`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// Print JSON, with all ranks and all operations.
    #[arg(long)]
    json: bool,
    /// Also write a page.
    #[arg(long, value_name = "FILE", value_parser = path())]
    html: Option<PathBuf>,
    #[command(flatten)]
    steps: bench::Flags,
}

impl Flags {
    /// The profile that a command line asks for. Everything that is wrong with the flags is added to `mistakes`, also a file
    /// that only a training run writes.
    pub(super) fn request(self, mistakes: &mut Mistakes) -> ProfileRequest {
        let BenchRequest { run, steps } = self.steps.request("profile", STEPS, mistakes);
        mistakes.keep(self.html.as_deref().map_or(Ok(()), |file| check_output("--html", "profile.html", file)));
        ProfileRequest { run, steps, json: self.json, html: self.html }
    }
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
