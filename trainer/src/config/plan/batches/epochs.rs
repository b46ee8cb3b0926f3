//! Passes over the data of a run: `train.epochs` becomes `train.steps` once the data are open.

use common::format::{count, counted};
use common::{Choice, UserError};
use data::{Epoch, Source};

use super::batch::BatchPlan;
use crate::config::plan::RunPlan;
use crate::config::{RunConfig, TrainConfig};

/// The configuration with `train.steps` in place of `train.epochs`, if set.
///
/// # Errors
/// Data without an end, or that are missing.
pub fn in_steps(config: &RunConfig, batch: &BatchPlan, source: &dyn Source) -> Result<RunConfig, UserError> {
    let Some(epochs) = config.train.epochs else { return Ok(config.clone()) };
    let Some(Epoch { samples, .. }) = source.epoch() else {
        return Err(UserError::new(
            format!("train.epochs = {epochs}, and passes over these data cannot be counted: {}", source.describe()),
            "an epoch is a pass over the samples of data.path",
            "name files with --data-path, or set train.steps (--steps)",
        ));
    };
    let steps = batch.steps_for((epochs * samples as f64).ceil() as u64).max(1);
    let train = TrainConfig { steps, epochs: None, ..config.train.clone() };
    Ok(RunConfig { train, ..config.clone() })
}

/// The plan with `train.steps` in place of `train.epochs`, if set.
///
/// # Errors
/// As [`in_steps`].
pub fn plan_in_steps(plan: RunPlan, source: &dyn Source) -> Result<RunPlan, UserError> {
    match plan.config.train.epochs {
        None => Ok(plan),
        Some(_) => RunPlan::new(in_steps(&plan.config, &plan.batch, source)?, plan.parallel.mesh.ranks()),
    }
}

/// The passes of a run over the data, as `2.3 epochs of 1234 conversations`. `None` if the data have no end.
pub fn described(plan: &RunPlan, source: &dyn Source) -> Option<String> {
    let Epoch { samples, conversations } = source.epoch()?;
    let epochs = plan.batch.samples_of(plan.steps) as f64 / samples.max(1) as f64;
    let shown = if epochs < 10.0 { format!("{epochs:.1}") } else { count(epochs) };
    let unit = if shown == "1.0" { "epoch" } else { "epochs" };
    let of = match conversations {
        Some(all) => counted(all as usize, plan.config.data.kind().word()),
        None => format!("{} samples", count(samples as f64)),
    };
    Some(format!("{shown} {unit} of {of}"))
}
