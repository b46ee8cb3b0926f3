//! `trainer plan`: the layouts of a run that fit GPUs that are not there, and their predicted speed.

mod limits_page;
mod page;

use std::path::PathBuf;

use clap::Args;
use common::{Mistakes, UserError};
use serde_json::to_string_pretty;

use super::args::{filled, path, training_run, whole};
use crate::predict::{Card, Found, Search, fitting, forecast, limits, search, timeline_picture, with_state_as_needed};
use trainer::config::plan::{BatchPlan, RunPlan, in_steps, model_plan, suits_gpus};
use trainer::config::request::TrainRequest;
use trainer::config::{ModelKind, TrainConfig};
use trainer::error::{RunError, file_error};
use trainer::run::set_up::check_start;
use trainer::run::source::source_of_model;

/// A run to predict.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    run: TrainRequest,
    card: Card,
    flags: Flags,
}

/// The flags of `trainer plan`.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// GPUs of the run.
    #[arg(long, value_name = "N", value_parser = whole(1..=1 << 17))]
    ranks: usize,
    /// Kind of the GPUs: h200, h100-80, a100-80, b200, or a TOML file as in configs/gpus.
    #[arg(long, value_name = "GPU", value_parser = filled())]
    gpu: String,
    /// GPUs of a node.
    #[arg(long, value_name = "N", default_value = "8", value_parser = whole(1..=1024))]
    nodes_of: usize,
    /// Layouts to print.
    #[arg(long, value_name = "N", default_value = "8", value_parser = whole(1..=100))]
    layouts: usize,
    /// Predicts the layout of the flags alone. Otherwise what they do not give is tried.
    #[arg(long)]
    as_given: bool,
    /// Also says how far the GPUs' memory goes: the longest samples and the most blocks, with each means of more room.
    #[arg(long)]
    limits: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Draws the step of the first layout into this SVG file.
    #[arg(long, value_name = "FILE", value_parser = path())]
    timeline: Option<PathBuf>,
    /// The trainer's flags.
    #[arg(value_name = "FLAGS", last = true, num_args = 0..)]
    flags: Vec<String>,
}

impl Flags {
    /// The prediction that a command line asks for. Everything that is wrong with the flags is added to `mistakes`, and an
    /// unknown GPU too.
    pub(super) fn request(self, mistakes: &mut Mistakes) -> Option<PlanRequest> {
        let run = training_run(self.flags.clone(), mistakes);
        let card = mistakes.keep(Card::named(&self.gpu));
        if run.as_ref().is_some_and(|run| run.config.model.kind == ModelKind::Mlp) {
            let rule = "layouts are those of a transformer";
            mistakes.add(UserError::new(
                "plan with model.kind = \"mlp\"",
                rule,
                "name a GPT or Llama, such as --preset gpt2-124m",
            ));
        }
        let (run, card) = run.zip(card)?;
        Some(PlanRequest { run, card, flags: self })
    }
}

/// The plan of a run for the GPU of that name. Fails unless it fits.
///
/// # Errors
/// An unknown GPU; a stage that does not fit.
pub(super) fn fitting_named_gpu(name: &str, plan: &RunPlan) -> Result<RunPlan, UserError> {
    let fix = "set options that do not exclude each other";
    fitting(plan, &Card::named(name)?).map_err(|error| match error {
        RunError::User(error) => error,
        other => UserError::new(other.to_string(), "a run can be recorded", fix),
    })
}

/// The prediction as text.
///
/// # Errors
/// No layout fits.
pub(super) fn run(request: &PlanRequest) -> Result<String, RunError> {
    let PlanRequest { run, card, flags } = request;
    let (ranks, node) = (flags.ranks, flags.nodes_of);
    let model = model_plan(&run.config)?;
    check_start(&run.config, &model)?;
    suits_gpus(&model)?;
    // A run can be planned before its data are named, unless they decide how long it is.
    let has_data = run.config.data.path.is_some() || run.config.train.epochs.is_some();
    let source = has_data.then(|| source_of_model(&run.config.data, &model)).transpose()?;
    // The steps of epochs depend on the samples of a step, not on their division.
    let train = TrainConfig { micro_batch_size: 1, ..run.config.train.clone() };
    let config = match &source {
        Some(source) => in_steps(&run.config, &BatchPlan::new(&train, 1)?, &**source)?,
        None => run.config.clone(),
    };
    let found = match flags.as_given {
        true => {
            let plan = with_state_as_needed(&RunPlan::new(config, ranks)?, card, node)?;
            let forecast = forecast(&plan, card, node)?;
            Found { allowed: 1, recorded: 1, best: vec![(plan, forecast)] }
        }
        false => search(&Search {
            config: &config,
            ranks,
            node,
            card,
            given: &|key| run.given.contains(key),
            most: flags.layouts,
        })?,
    };
    if let (Some(file), Some((_, forecast))) = (&flags.timeline, found.best.first()) {
        std::fs::write(file, timeline_picture(forecast))
            .map_err(file_error(format!("the timeline, {}", file.display())))?;
    }
    let first = found.best.first().filter(|_| flags.limits);
    let limits = first.map(|(plan, _)| limits(plan, card, node)).transpose()?.unwrap_or_default();
    match flags.json {
        true => {
            let mut page = page::json(card, &found);
            page["limits"] = limits_page::json(&limits);
            Ok(to_string_pretty(&page).unwrap_or_default())
        }
        false => Ok(page::text(card, node, &found, source.as_deref()) + &limits_page::text(card, &limits)),
    }
}
