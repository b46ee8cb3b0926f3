//! A model on data sets and on questions, without training: `trainer eval`.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Range;

use data::{Source, Split, TokenSource};
use device::{Device, HostValues, Staging};
use engine::model::SampleRow;
use engine::step::{Stage, StepSettings};
use launch::watch::activity::Doing;
use serde::Serialize;

use crate::config::plan::{BatchShare, RunPlan};
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::run::consistency::{check_data, check_identities};
use crate::run::multiple_choice::{ChoiceResult, ChoiceSet, of_choices};
use crate::run::set_up::{load_start, stage, step_settings};

/// A data set to evaluate on.
pub struct EvaluationSet {
    /// The user's name of the data.
    pub name: String,
    /// The samples. All of them are read, in order.
    pub source: TokenSource,
}

/// The loss of a model on a data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationResult {
    /// The user's name of the data set.
    pub data: String,
    /// Samples that were evaluated.
    pub samples: u64,
    /// The samples' targets.
    pub tokens: u64,
    /// Mean loss of a target, in nats.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
}

/// The data to evaluate on.
pub enum Subject {
    /// Data to compute the loss of.
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
    let samples = set.source.validation_samples().unwrap_or(0).min(most.unwrap_or(u64::MAX));
    let mut sum = LossSum::default();
    for first in (0..samples).step_by(plan.batch.global) {
        if group.control.any(group.stop.is_asked()) {
            return Ok(None);
        }
        sum.add(plan, group.rank(), stage, &set.source, first..samples)?;
    }
    let (loss, tokens) = (sum.loss.mean(), sum.loss.targets);
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

/// Means over samples.
pub(super) struct Means {
    /// Of the loss.
    pub(super) loss: f64,
    /// Of pairs of answers: see [`of_pairs`](engine::step::StepResult::of_pairs).
    pub(super) of_pairs: BTreeMap<String, f64>,
}

/// The means over at most `most` samples to evaluate on, the same samples each time. Each sample is there once, and every
/// target that has a loss counts the same. All ranks call it together.
pub(super) fn validation_means(
    plan: &RunPlan,
    rank: usize,
    stage: &mut Stage,
    source: &dyn Source,
    most: u64,
) -> Result<Means, RunError> {
    let samples = source.validation_samples().unwrap_or(u64::MAX).min(most);
    let mut sum = LossSum::default();
    for first in (0..samples).step_by(plan.batch.global) {
        sum.add(plan, rank, stage, source, first..samples)?;
    }
    let of_pairs = sum.of_pairs.iter().map(|(name, sum)| (name.to_string(), sum.mean())).collect();
    Ok(Means { loss: sum.loss.mean(), of_pairs })
}

/// Losses of samples, added up.
#[derive(Default)]
struct LossSum {
    loss: Sum,
    /// A batch without answers of a label has no numbers of that label.
    of_pairs: BTreeMap<&'static str, Sum>,
}

/// A sum over targets of batches, each of which has a mean.
#[derive(Default)]
struct Sum {
    total: f64,
    targets: u64,
}

impl LossSum {
    /// Adds a global batch of samples: the first of `samples`, as far as there are so many.
    fn add(
        &mut self,
        plan: &RunPlan,
        rank: usize,
        stage: &mut Stage,
        source: &dyn Source,
        samples: Range<u64>,
    ) -> Result<(), RunError> {
        let (first, global) = (samples.start, plan.batch.global);
        let count = global.min((samples.end - first) as usize);
        let share = plan.batch.share_of_global(first, plan.parallel.data_rank(rank));
        let batch =
            if stage.needs_batch() { Some(batch(source, &plan.sample_row(), share, samples.end)?) } else { None };
        let counts = source.counts(Split::Validation, first, count)?;
        let targets = counts.map_or((count * plan.size.losses_per_sample) as u64, |counts| counts.targets);
        let length = plan.length_of(source, Split::Validation, first, count)?;
        let index = first as usize / global;
        let settings = StepSettings { length, ..step_settings(&plan.optimizer, index, share, counts) };
        let result = stage.evaluate(settings, batch.as_ref())?.wait()?;
        self.loss.add(result.loss, targets);
        for (name, mean) in result.of_pairs {
            self.of_pairs.entry(name).or_default().add(mean, targets);
        }
        Ok(())
    }
}

impl Sum {
    fn add(&mut self, mean: f64, targets: u64) {
        self.total += mean * targets as f64;
        self.targets += targets;
    }

    fn mean(&self) -> f64 {
        self.total / self.targets as f64
    }
}

/// The samples of a share that are below `end`. Rows from there on have no targets, so their loss is 0.
fn batch(source: &dyn Source, form: &SampleRow, share: BatchShare, end: u64) -> Result<HostValues, RunError> {
    let read = |first, count| source.batch(Split::Validation, first, count, &Staging::default());
    let own = share.samples.min(end.saturating_sub(share.first_sample) as usize);
    let samples = read(share.first_sample, own)?;
    let beyond_the_last = u64::MAX - share.samples as u64;
    let (HostValues::I32(tokens), HostValues::I32(rest)) = (&samples, read(beyond_the_last, share.samples - own)?)
    else {
        return Ok(samples);
    };
    let values = [&tokens[..], &rest].concat();
    let width = values.len() / share.samples;
    if width == form.width {
        return Ok(HostValues::I32(values.into()));
    }
    // The rows of choices: inputs, then targets.
    let rows = values.chunks(width).map(|row| match width == form.inputs.len() + 1 {
        true => [&row[..width - 1], &row[1..]].concat(),
        false => row[..form.width].to_vec(),
    });
    Ok(HostValues::I32(rows.collect::<Vec<_>>().concat().into()))
}
