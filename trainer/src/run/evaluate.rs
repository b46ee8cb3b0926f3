//! A model on data sets and on questions, without training: `trainer eval`.

use std::mem::ManuallyDrop;

use data::TokenSource;
use device::{Device, HostValues};
use engine::model::SampleRow;
use engine::step::Stage;
use launch::watch::activity::Doing;
use serde::Serialize;

use crate::config::batch_plan::BatchShare;
use crate::config::plan::RunPlan;
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::run::consistency::{check_data, check_identities};
use crate::run::multiple_choice::{ChoiceResult, ChoiceSet, of_choices};
use crate::run::set_up::{load_start, stage, step_settings};

/// A data set to evaluate on.
pub struct EvaluationSet {
    /// The user's name for it.
    pub name: String,
    /// Its samples. All of them are read, in order.
    pub source: TokenSource,
}

/// The loss of a model on a data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationResult {
    /// The data set, as the user named it.
    pub data: String,
    /// Samples that were evaluated.
    pub samples: u64,
    /// Their targets.
    pub tokens: u64,
    /// Mean loss of a target, in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
}

/// The data to evaluate on.
pub enum Subject {
    /// Data, for their loss.
    Data(Box<EvaluationSet>),
    /// Questions, for the share that is answered right.
    Choices(ChoiceSet),
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Evaluated {
    /// Of data.
    Data(EvaluationResult),
    /// Of questions.
    Choices(ChoiceResult),
}

/// Evaluates the model of `model.init_from` on each of the subjects: on at most `most` samples or questions of each, or
/// on all. All ranks call it together. Returns `None` in a dry run, and if the process was asked to end.
///
/// # Errors
/// See [`RunError`].
pub fn evaluate(
    plan: &RunPlan,
    group: &ProcessGroup,
    device: &Device,
    subjects: &[Subject],
    most: Option<u64>,
) -> Result<Option<Vec<Evaluated>>, RunError> {
    for subject in subjects {
        match subject {
            Subject::Data(set) => check_data(group, &set.source)?,
            Subject::Choices(set) => check_identities(group, set.questions.identities(&set.name))?,
        };
    }
    // On a fault nothing is torn down: see `train`.
    let mut stage = ManuallyDrop::new(stage(plan, device, group, false)?);
    load_start(plan, device, &stage)?;
    let mut results = Vec::new();
    if !device.is_dry() {
        for subject in subjects {
            let result = group.activity.during(Doing::Evaluates, || match subject {
                Subject::Data(set) => {
                    of_set(plan, group, &mut stage, set, most).map(|found| found.map(Evaluated::Data))
                }
                Subject::Choices(set) => {
                    of_choices(plan, group, &mut stage, set, most).map(|found| found.map(Evaluated::Choices))
                }
            })?;
            result.iter().try_for_each(check_finite)?;
            results.extend(result);
        }
    }
    drop(ManuallyDrop::into_inner(stage));
    Ok((results.len() == subjects.len()).then_some(results))
}

/// The loss on a set. All ranks call it together. Returns `None` if the process was asked to end.
pub(super) fn of_set(
    plan: &RunPlan,
    group: &ProcessGroup,
    stage: &mut Stage,
    set: &EvaluationSet,
    most: Option<u64>,
) -> Result<Option<EvaluationResult>, RunError> {
    let samples = set.source.samples().min(most.unwrap_or(u64::MAX));
    let tokens = set.source.targets_in_order(0..samples);
    let (data_rank, row) = (plan.parallel.data_rank(group.rank), plan.sample_row());
    let mut total = 0.0;
    for (index, first) in (0..samples).step_by(plan.batch.global).enumerate() {
        if group.control.any(group.stop.is_asked()) {
            return Ok(None);
        }
        let share = plan.batch.share_of_global(first, data_rank);
        let batch = if stage.needs_batch() { Some(batch(&set.source, &row, share, samples)?) } else { None };
        let targets = set.source.targets_in_order(first..samples.min(first + plan.batch.global as u64));
        let settings = step_settings(&plan.optimizer, index, share, Some(targets));
        total += stage.evaluate(settings, batch.as_ref())?.wait()?.loss * targets as f64;
    }
    let loss = total / tokens as f64;
    Ok(Some(EvaluationResult { data: set.name.clone(), samples, tokens, loss, perplexity: loss.exp() }))
}

/// Fails unless all scores are finite.
fn check_finite(result: &Evaluated) -> Result<(), RunError> {
    let (data, losses) = match result {
        Evaluated::Data(result) => (&result.data, vec![result.loss]),
        Evaluated::Choices(result) => {
            let all = result.answers.iter().flat_map(|answer| &answer.log_likelihoods);
            (&result.data, all.map(|sum| -sum).collect())
        }
    };
    match losses.into_iter().find(|loss| !loss.is_finite()) {
        Some(loss) => Err(RunError::NotFinite { data: data.clone(), loss }),
        None => Ok(()),
    }
}

/// The samples of a share, as far as they are below `end`. Rows from there on have no targets, so their loss is 0.
fn batch(source: &TokenSource, form: &SampleRow, share: BatchShare, end: u64) -> Result<HostValues, RunError> {
    let mut values = vec![-1; share.samples * form.width];
    if let Some(documents) = &form.documents {
        for row in values.chunks_mut(form.width) {
            row[documents.position_ids.clone()].iter_mut().zip(0..).for_each(|(position, number)| *position = number);
        }
    }
    let mut tokens = vec![-1; source.width()];
    for (number, row) in (share.first_sample..end).zip(values.chunks_mut(form.width)) {
        if tokens.len() == row.len() {
            source.in_order(number, row)?;
            continue;
        }
        // Windows of tokens; the samples of this form have separate targets.
        source.in_order(number, &mut tokens)?;
        row[form.inputs.clone()].copy_from_slice(&tokens[..tokens.len() - 1]);
        row[form.targets.clone()].copy_from_slice(&tokens[1..]);
    }
    Ok(HostValues::I32(values.into()))
}
