//! Multiple choice: how often a model finds the right ending likeliest.

use std::ops::Range;

use data::{Accuracy, Asked, MultipleChoice};
use device::HostValues;
use device::ops::SequenceShare;
use engine::step::{Stage, StepSettings};
use parallel::{Axis, Place};
use serde::Serialize;

use crate::config::plan::{BatchShare, RunPlan};
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::run::set_up::step_settings;

/// Questions to evaluate on.
pub struct ChoiceSet {
    /// The user's name for the questions.
    pub name: String,
    /// The questions.
    pub questions: MultipleChoice,
}

/// How well a model chose endings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChoiceResult {
    /// The user's name of the file.
    pub data: String,
    /// Questions that were asked.
    pub questions: usize,
    /// Share of the questions with the largest log-likelihood for the right ending.
    pub acc: f64,
    /// Standard error of `acc`.
    pub acc_stderr: f64,
    /// The share of right endings by the log-likelihood over the number of characters.
    pub acc_norm: f64,
    /// Standard error of `acc_norm`.
    pub acc_norm_stderr: f64,
    /// Each question.
    #[serde(skip)]
    pub answers: Vec<Answer>,
}

/// A model's choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The user's name of the file.
    pub data: String,
    /// The question's line, from 1.
    pub line: usize,
    /// The right ending, from 0.
    pub label: usize,
    /// The ending with the largest log-likelihood.
    pub chosen: usize,
    /// The ending with the largest log-likelihood over the number of characters.
    pub chosen_norm: usize,
    /// The sum of the log-likelihoods of each ending's tokens, in nats.
    pub log_likelihoods: Vec<f64>,
}

/// Asks the questions of a set, at most `most`. All ranks call it together and get the same result. Returns `None` if the process
/// was asked to end.
pub(super) fn of_choices(
    plan: &RunPlan,
    group: &ProcessGroup,
    stage: &mut Stage,
    set: &ChoiceSet,
    most: Option<u64>,
) -> Result<Option<ChoiceResult>, RunError> {
    let all = set.questions.questions();
    let asked = &all[..all.len().min(most.map_or(usize::MAX, |most| most as usize))];
    let rows = asked.last().map_or(0, |last| last.rows.end);
    let Some(own) = own_sums(plan, group, stage, &set.questions, rows)? else { return Ok(None) };
    let sums = on_all_ranks(plan, group, &own, rows);
    let answer = |asked: &Asked| {
        let log_likelihoods = sums[asked.rows.clone()].to_vec();
        Answer {
            data: set.name.clone(),
            line: asked.line,
            label: asked.label,
            chosen: asked.chosen(&log_likelihoods),
            chosen_norm: asked.chosen_by_mean(&log_likelihoods),
            log_likelihoods,
        }
    };
    let answers: Vec<Answer> = asked.iter().map(answer).collect();
    let accuracy = |chosen: fn(&Answer) -> usize| {
        Accuracy::new(answers.iter().filter(|answer| chosen(answer) == answer.label).count(), answers.len())
    };
    let (acc, norm) = (accuracy(|answer| answer.chosen), accuracy(|answer| answer.chosen_norm));
    Ok(Some(ChoiceResult {
        data: set.name.clone(),
        questions: answers.len(),
        acc: acc.share,
        acc_stderr: acc.stderr,
        acc_norm: norm.share,
        acc_norm_stderr: norm.stderr,
        answers,
    }))
}

/// The log-likelihoods of the rows that this rank has losses of, each with the row's number. Empty on ranks without the head.
fn own_sums(
    plan: &RunPlan,
    group: &ProcessGroup,
    stage: &mut Stage,
    questions: &MultipleChoice,
    rows: usize,
) -> Result<Option<Vec<(usize, f64)>>, RunError> {
    let data_rank = plan.parallel.data_rank(group.rank());
    let width = plan.sample_row().width;
    let Place { index: rank, count: ranks } = group.ranks.at(Axis::Context);
    let (sequence, tokens) = (SequenceShare { rank, ranks }, width / 2 / ranks);
    let mut sums = Vec::new();
    for (index, first) in (0..rows).step_by(plan.batch.global).enumerate() {
        if group.control.any(group.stop.is_asked()) {
            return Ok(None);
        }
        let share = plan.batch.share_of_global(first as u64, data_rank);
        let own = rows_of(share, rows);
        let batch = stage.needs_batch().then(|| {
            // Rows beyond the last have no targets.
            let mut values = vec![-1; share.samples * width];
            for (number, row) in own.clone().zip(values.chunks_mut(width)) {
                questions.read(number, row);
            }
            HostValues::I32(values.into())
        });
        let targets = questions.targets(first..rows.min(first + plan.batch.global));
        let settings = StepSettings { targets: Some(targets), ..step_settings(&plan.optimizer, index, share, None) };
        let pending = stage.evaluate(settings, batch.as_ref())?;
        let losses = stage.losses(share.microbatches)?;
        pending.wait()?;
        let Some(losses) = losses.map(|losses| losses.wait()).transpose()? else { continue };
        for (number, losses) in own.zip(losses.chunks(tokens)) {
            let counted = questions.counted(number);
            let here = (0..tokens).filter(|&token| counted.contains(&sequence.position(token, tokens)));
            sums.push((number, -here.map(|token| f64::from(losses[token])).sum::<f64>()));
        }
    }
    Ok(Some(sums))
}

/// The rows of a share that are below `end`.
fn rows_of(share: BatchShare, end: usize) -> Range<usize> {
    let first = share.first_sample as usize;
    first.min(end)..end.min(first + share.samples)
}

/// So many numbers, on all ranks: each rank with the head has some of them, with their places. Each part of the batch comes
/// from the first rank that has it and the head. Ranks that divide sequences have a summand each.
pub(super) fn on_all_ranks(plan: &RunPlan, group: &ProcessGroup, own: &[(usize, f64)], count: usize) -> Vec<f64> {
    let mut sums = vec![0.0; count];
    let ranks = 0..plan.parallel.mesh.ranks();
    let with_head: Vec<usize> = ranks.filter(|rank| plan.layers(*rank).has_last()).collect();
    let mesh = &plan.parallel.mesh;
    for part in 0..mesh.size(Axis::Tokens) {
        let Some(rank) = with_head.iter().find(|rank| mesh.position(**rank, Axis::Tokens) == part) else { continue };
        // As bits: no digit is lost.
        let text = match *rank == group.rank() {
            true => own.iter().map(|(number, sum)| format!("{number} {}\n", sum.to_bits())).collect(),
            false => String::new(),
        };
        for line in group.control.broadcast_text(*rank, text).lines() {
            let mut words = line.split(' ').map(str::parse::<u64>);
            if let (Some(Ok(number)), Some(Ok(bits))) = (words.next(), words.next()) {
                sums[number as usize] += f64::from_bits(bits);
            }
        }
    }
    sums
}
