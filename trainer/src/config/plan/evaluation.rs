//! When a run is evaluated, and what follows from it.

use common::UserError;
use engine::params::Sharding;

use super::model::ModelPlan;
use crate::config::checks::{at_least, require};
use crate::config::{Fp8Choice, ParallelConfig, RunConfig, TrainConfig};

/// When the model is evaluated, and on how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationPlan {
    /// Steps between evaluations.
    pub interval: usize,
    /// Global batches of an evaluation.
    pub batches: usize,
}

impl EvaluationPlan {
    /// `None` if the run is not evaluated.
    pub fn new(train: &TrainConfig) -> Option<EvaluationPlan> {
        let plan = EvaluationPlan { interval: train.eval_interval, batches: train.eval_steps };
        (plan.interval > 0 && plan.batches > 0).then_some(plan)
    }
}

/// Fails if something waits for a validation loss and there is none.
pub(super) fn check_validation(config: &RunConfig) -> Result<(), UserError> {
    let patience = config.train.early_stop_patience;
    let waits = match (config.checkpoint.save_best, patience) {
        (true, _) => "checkpoint.save_best = true".to_string(),
        (_, 1..) => format!("train.early_stop_patience = {patience}"),
        _ => return Ok(()),
    };
    require(EvaluationPlan::new(&config.train).is_some(), || {
        UserError::new(
            format!("{waits} without evaluations"),
            "it goes by the validation loss",
            "set train.eval_interval and train.eval_steps above 0",
        )
    })
}

/// Fails if the run cannot write samples and is asked to.
pub(super) fn check_samples(config: &RunConfig, model: &ModelPlan) -> Result<(), UserError> {
    if config.logging.sample_prompts.is_none() {
        return Ok(());
    }
    at_least("logging.sample_interval", config.logging.sample_interval, 1)?;
    let ParallelConfig { tensor, pipeline, .. } = config.parallel;
    let (what, rule) = match () {
        () if matches!(model, ModelPlan::Mlp(_)) => ("model.kind = \"mlp\"".to_string(), "only a gpt writes text"),
        () if tensor > 1 => (format!("parallel.tensor = {tensor}"), "one rank writes, and needs all of the model"),
        () if pipeline > 1 => {
            (format!("parallel.pipeline = {pipeline}"), "one rank writes, and needs all of the model")
        }
        () if config.parallel.sharding() > Sharding::Nothing => (
            "data-parallel ranks that divide the optimizer (parallel.distributed_optimizer)".into(),
            "one rank writes, and between steps it has only its own part of the newest weights",
        ),
        () if config.precision.frozen_weights.codes().is_some() => (
            format!("precision.frozen_weights = \"{}\"", config.precision.frozen_weights),
            "the values of codes are there while their layer runs in a step",
        ),
        () if config.precision.fp8 != Fp8Choice::None => (
            format!("precision.fp8 = \"{}\"", config.precision.fp8),
            "a text is written one token at a time, and 8-bit products have multiples of 16 rows",
        ),
        () => return Ok(()),
    };
    let what = format!("logging.sample_prompts with {what}");
    Err(UserError::new(what, rule, "leave --sample-prompts out, and use `trainer sample` on a checkpoint"))
}
