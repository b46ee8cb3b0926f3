//! `trainer plan`: the layouts of a run that fit GPUs that are not there, and their predicted speed.

mod limits_page;
mod page;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use common::{Mistakes, UserError};
use serde_json::to_string_pretty;

use super::args::{text, text_flag, training_run};
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
    ranks: usize,
    /// GPUs of a node.
    node: usize,
    card: Card,
    /// Predict the layout of the flags alone.
    as_given: bool,
    /// Layouts to print.
    layouts: usize,
    json: bool,
    /// Say the longest samples and the most blocks that fit.
    limits: bool,
    /// The file for a drawing of the first layout's step.
    timeline: Option<PathBuf>,
}

/// GPUs of a node, unless the user says otherwise.
const NODE: &str = "8";

pub(super) fn command() -> Command {
    let switch =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let number = |name: &'static str, most: i64, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u32).range(1..=most)).help(help)
    };
    Command::new("plan")
        .about("Predicts a run on GPUs that are not there: what fits, and how fast: trainer plan --ranks 64 --gpu h100-80 -- FLAGS")
        .arg(number("ranks", 1 << 17, "GPUs of the run").required(true))
        .arg(text_flag("gpu", "GPU", "Kind of the GPUs: h200, h100-80, a100-80, b200, or a TOML file as in configs/gpus").required(true))
        .arg(number("nodes-of", 1024, "GPUs of a node").default_value(NODE))
        .arg(number("layouts", 100, "Layouts to print").default_value("8"))
        .arg(switch("as-given", "Predicts the layout of the flags alone. Otherwise what they do not give is tried"))
        .arg(switch("limits", "Also says how far the GPUs' memory goes: the longest samples and the most blocks, with each means of more room"))
        .arg(switch("json", "Prints JSON"))
        .arg(text_flag("timeline", "FILE", "Draws the step of the first layout into this SVG file"))
        .arg(Arg::new("flags").value_name("FLAGS").last(true).num_args(0..).help("The trainer's flags"))
}

/// The prediction that a command line asks for. Everything that is wrong with the flags is added to `mistakes`, and an unknown
/// GPU too.
pub(super) fn request(matches: &ArgMatches, mistakes: &mut Mistakes) -> Option<PlanRequest> {
    let flags = matches.get_many::<String>("flags").into_iter().flatten().map(OsString::from);
    let run = training_run([OsString::from("trainer")].into_iter().chain(flags), mistakes);
    let number = |name: &str| matches.get_one::<u32>(name).map_or(0, |number| *number as usize);
    let card = mistakes.keep(Card::named(&text(matches, "gpu").unwrap_or_default()));
    if run.as_ref().is_some_and(|run| run.config.model.kind == ModelKind::Mlp) {
        let rule = "layouts are those of a transformer";
        mistakes.add(UserError::new(
            "plan with model.kind = \"mlp\"",
            rule,
            "name a GPT or Llama, such as --preset gpt2-124m",
        ));
    }
    let (run, card) = run.zip(card)?;
    Some(PlanRequest {
        run,
        ranks: number("ranks"),
        node: number("nodes-of"),
        card,
        as_given: matches.get_flag("as-given"),
        layouts: number("layouts"),
        json: matches.get_flag("json"),
        limits: matches.get_flag("limits"),
        timeline: text(matches, "timeline").map(PathBuf::from),
    })
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
    let PlanRequest { run, ranks, node, card, as_given, layouts, json, limits: asks_limits, timeline } = request;
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
    let found = match as_given {
        true => {
            let plan = with_state_as_needed(&RunPlan::new(config, *ranks)?, card, *node)?;
            let forecast = forecast(&plan, card, *node)?;
            Found { allowed: 1, recorded: 1, best: vec![(plan, forecast)] }
        }
        false => search(&Search {
            config: &config,
            ranks: *ranks,
            node: *node,
            card,
            given: &|key| run.given.contains(key),
            most: *layouts,
        })?,
    };
    if let (Some(file), Some((_, forecast))) = (timeline, found.best.first()) {
        std::fs::write(file, timeline_picture(forecast))
            .map_err(file_error(format!("the timeline, {}", file.display())))?;
    }
    let first = found.best.first().filter(|_| *asks_limits);
    let limits = first.map(|(plan, _)| limits(plan, card, *node)).transpose()?.unwrap_or_default();
    match json {
        true => {
            let mut page = page::json(card, &found);
            page["limits"] = limits_page::json(&limits);
            Ok(to_string_pretty(&page).unwrap_or_default())
        }
        false => Ok(page::text(card, *node, &found, source.as_deref()) + &limits_page::text(card, &limits)),
    }
}
