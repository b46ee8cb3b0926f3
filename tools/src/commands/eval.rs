//! `trainer eval`: the loss of a model on data sets, and its accuracy in multiple choice.

use std::path::PathBuf;

use clap::{ArgAction, Args, value_parser};
use common::files::write_file;
use common::terminal::{print, warn};
use common::{Mistakes, UserError};
use data::Tokenizer;
use launch::RankEnv;

use super::args::{MODEL_FOLDER, RunFlags, filled, path, request_from, sets_option};
use super::train::{log_filter, start};
use trainer::config::plan::{BucketPlan, EvaluationPlan, FrozenNames, RunPlan};
use trainer::config::request::TrainRequest;
use trainer::config::{Fp8Choice, by_key};
use trainer::error::file_error;
use trainer::hf::Pretrained;
use trainer::report::logs;
use trainer::run::accelerator::Accelerator;
use trainer::run::evaluate::{Evaluated, EvaluationSet, Subject, evaluate};
use trainer::run::ranks::refuse;
use trainer::run::run_folder::writable;
use trainer::run::set_up::check_start;
use trainer::run::source::{choice_set, evaluation_set};
use trainer::told::tell;

/// A model to evaluate, and the data.
#[derive(Clone, Debug)]
pub struct EvalRequest {
    /// The settings of a run that starts from the model.
    pub run: TrainRequest,
    /// The data sets.
    pub data: Vec<String>,
    /// Files of multiple-choice questions.
    pub multiple_choice: Vec<String>,
    /// The largest number of samples of each, or of questions; `None` for all.
    pub samples: Option<u64>,
    /// The file for the model's choices.
    pub write_choices: Option<PathBuf>,
}

/// The flags of `trainer eval`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    #[arg(value_name = "MODEL", value_parser = path(), help = MODEL_FOLDER)]
    model: PathBuf,
    /// Data sets: files of text, JSON lines, Parquet or tokens, or folders of them. Each has a loss of its own.
    #[arg(value_name = "DATA", num_args = 1.., required_unless_present = "multiple_choice", value_parser = filled())]
    data: Vec<String>,
    /// Multiple-choice questions: JSON lines as HellaSwag has them, or with context, choices and gold.
    #[arg(long, value_name = "FILE", action = ArgAction::Set, num_args = 1.., value_parser = filled())]
    multiple_choice: Vec<String>,
    /// Writes a line of JSON for each question: what the model chose, and why.
    #[arg(long, value_name = "FILE", value_parser = path(), requires = "multiple_choice")]
    write_choices: Option<PathBuf>,
    /// Largest number of samples of each data set, and of questions of each file. If not given: all.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    samples: Option<u64>,
    #[command(flatten)]
    run: RunFlags,
}

impl Flags {
    /// The evaluation that a command line asks for. Everything that is wrong with it is added to `mistakes`: a flag for
    /// something that the arguments name, too. `None` for a folder without a model.
    pub(super) fn request(self, mistakes: &mut Mistakes) -> Option<EvalRequest> {
        for (key, argument) in [("model.init_from", "MODEL"), ("data.path", "DATA"), ("data.validation_path", "DATA")] {
            if sets_option(&self.run, key) {
                let rule = format!("the argument {argument} names it: trainer eval MODEL DATA...");
                mistakes.add(UserError::new(format!("eval with {key}"), rule, format!("leave out {key}")));
                mistakes.doubt([key]);
            }
        }
        let model = mistakes.keep(Pretrained::open(&self.model))?;
        let preset = mistakes.keep(preset(&model))?;
        let preset: Vec<(&str, &str)> = preset.iter().map(|(key, value)| (&**key, &**value)).collect();
        let run = request_from(&self.run, &preset, Some(model), mistakes);
        let Flags { data, multiple_choice, samples, write_choices, .. } = self;
        Some(EvalRequest { run, data, multiple_choice, samples, write_choices })
    }
}

/// The options that follow from the model: its folder, and its run's precision and tokenizer.
fn preset(model: &Pretrained) -> Result<Vec<(String, String)>, UserError> {
    let folder = model.folder().display().to_string();
    let mut preset = vec![("model.init_from".to_string(), folder), ("cuda_graph.enable".into(), "true".into())];
    if let Some(run) = model.run()? {
        let run = toml::Table::try_from(run).unwrap_or_default();
        let kept = |key: &str| ["precision.compute", "data.end_of_text", "data.text_key"].contains(&key);
        let all = by_key(run).into_iter().filter(|(key, _)| kept(key));
        preset.extend(all.map(|(key, value)| (key, value.to_string())));
    }
    let tokenizer = model.tokenizer_folder();
    if Tokenizer::is_in(tokenizer) {
        preset.push(("data.tokenizer".into(), tokenizer.display().to_string()));
    }
    Ok(preset)
}

/// Evaluates on all ranks; returns the exit code. A wrong request ends the process before it touches the device.
pub(super) fn run(request: &EvalRequest, env: &RankEnv) -> i32 {
    let prepared = prepare(request, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let (plan, subjects, accelerator) = &prepared;
    let (sets, files) = (request.data.len(), request.multiple_choice.len());
    let command = [("eval", format!("{sets} data sets, {files} files of questions, {:?} samples", request.samples))];
    start(&request.run, (plan, accelerator), env, &command, |group, device| {
        let results = evaluate(plan, group, device, subjects, request.samples)?;
        for result in results.iter().flatten().filter(|_| group.rank() == 0) {
            let line = serde_json::to_string(result).unwrap_or_default();
            print(&line).map_err(file_error("standard output".into()))?;
        }
        if let (0, Some(path), Some(results)) = (group.rank(), &request.write_choices, &results) {
            write_file(path, choices(results)).map_err(file_error(format!("--write-choices {}", path.display())))?;
        }
        match results {
            None if !device.is_dry() && group.rank() == 0 => warn("asked to end: stops before all data were evaluated"),
            _ => {}
        }
        Ok(0)
    })
}

/// A line for each question.
fn choices(results: &[Evaluated]) -> String {
    let answers = results.iter().flat_map(|result| match result {
        Evaluated::Choices(result) => &result.answers[..],
        Evaluated::Data(_) => &[],
    });
    answers.map(|answer| serde_json::to_string(answer).unwrap_or_default() + "\n").collect()
}

fn prepare(request: &EvalRequest, env: &RankEnv) -> Result<(RunPlan, Vec<Subject>, Accelerator), UserError> {
    let mut plan = RunPlan::new(request.run.config.clone(), env.world_size)?;
    let precision = &plan.config.precision;
    if precision.fp8 != Fp8Choice::None && precision.fp8_recipe.keeps_magnitudes() {
        return Err(UserError::new(
            format!("eval with precision.fp8_recipe = \"{}\"", precision.fp8_recipe),
            "its scales follow from earlier training steps",
            "set precision.fp8_recipe = \"tensorwise\", or leave precision.fp8 out",
        ));
    }
    if plan.config.data.kind().is_judged() {
        return Err(UserError::new(
            format!("eval with data.{}", plan.config.data.kind().option()),
            "the loss of judged answers compares a model with the one that its training started from, and an evaluation has one model",
            "ask pairs as questions (--multiple-choice), or give a training run pairs to validate on (--validation-path)",
        ));
    }
    plan.frozen = FrozenNames::all();
    plan.evaluation = Some(EvaluationPlan { interval: 1, batches: 1 });
    // Every set is read at the model's length.
    plan.buckets = BucketPlan::default();
    plan.keeps_losses = !request.multiple_choice.is_empty();
    if let (true, false, Some(key)) = (plan.keeps_losses, request.data.is_empty(), plan.config.data.divides()) {
        return Err(UserError::new(
            format!("eval with {key}, data and --multiple-choice"),
            "questions have rows of another form",
            "evaluate data and questions in two calls",
        ));
    }
    if plan.keeps_losses {
        // All rows have one form: that of choices. Conversations that are not packed have the same loss.
        plan.config.data.sft_packing = 1;
    }
    let sets = request.data.iter().map(|name| set(&plan, name).map(|set| Subject::Data(set.into())));
    let questions = request.multiple_choice.iter().map(|name| choice_set(&plan, name).map(Subject::Choices));
    let subjects = sets.chain(questions).collect::<Result<Vec<_>, _>>()?;
    if env.rank == 0 {
        check_start(&plan.config, &plan.model)?;
    }
    if let (0, false, Some(path)) = (env.rank, request.run.dry_run, &request.write_choices) {
        writable(&format!("--write-choices {}", path.display()), path)?;
    }
    let accelerator = Accelerator::choose(plan.config.train.device, env)?;
    if env.rank == 0 {
        let of_data = subjects.iter().flat_map(|subject| match subject {
            Subject::Data(set) => &set.source.notices,
            Subject::Choices(set) => &set.questions.notices,
        });
        request.run.notices.iter().chain(of_data).for_each(|notice| tell(&format!("notice: {notice}")));
    }
    logs::start(log_filter(&request.run.log)?, None, env.rank)?;
    Ok((plan, subjects, accelerator))
}

fn set(plan: &RunPlan, name: &str) -> Result<EvaluationSet, UserError> {
    evaluation_set(plan, name, name)
        .map_err(|error| UserError { what: error.what.replace("data.path = ", "eval: DATA = "), ..error })
}
