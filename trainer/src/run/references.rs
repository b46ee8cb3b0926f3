//! Log-probabilities of judged answers under the reference model: the one that training starts from.
//!
//! The evaluation of the run itself computes them once, before its first step. A file keeps them for runs that go on, and for
//! other runs on the same pairs from the same model.

use std::io::Write;
use std::path::{Path, PathBuf};

use common::files::{read_file, replace_file};
use common::format::counted;
use common::{Choice, UserError};
use data::{Conversations, ReferenceLogps, Source};
use device::HostValues;
use device::ops::PairLoss;
use engine::step::{Stage, StepSettings};
use launch::watch::activity::Doing;
use parallel::Axis;
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::config::plan::RunPlan;
use crate::error::{RunError, file_error};
use crate::process_group::ProcessGroup;
use crate::run::multiple_choice::on_all_ranks;
use crate::run::set_up::step_settings;
use crate::told::tell;

/// The name of the file in `checkpoint.dir`.
const REFERENCES: &str = "references.json";

/// A file has no more bytes.
const LARGEST: u64 = 4 << 30;

/// The largest relative difference of log-probabilities of the same model: other layouts and graphs round otherwise, and
/// bf16 has 8 digits.
const ROUNDING: f64 = 0.02;

/// The log-probabilities of all pairs of a run, in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The pairs to train on, then the pairs to evaluate on.
    parts: Vec<KeptPart>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptPart {
    /// [`Conversations::digest`].
    sha256: String,
    /// For each pair, of the chosen and of the rejected answer.
    logps: Vec<ReferenceLogps>,
}

/// When the references are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The stage has the weights that training starts from.
    BeforeTheFirstStep,
    /// The run goes on: the weights are others by now.
    Later,
}

/// The file of a run's references, if the run keeps one.
fn file(config: &RunConfig) -> Option<PathBuf> {
    let in_checkpoints = || Some(Path::new(config.checkpoint.dir.as_ref()?).join(REFERENCES));
    config.dpo.references.as_ref().map(PathBuf::from).or_else(in_checkpoints)
}

/// Gives a reference to each of the source's pairs: those of the file, or computed ones, which the file then keeps. All
/// ranks call it together. Does nothing for a run without pairs.
///
/// # Errors
/// A file of other pairs or of another model; a run that goes on without its file.
pub(super) fn set_references(
    plan: &RunPlan,
    group: &ProcessGroup,
    stage: &mut Stage,
    source: &dyn Source,
    moment: Moment,
) -> Result<(), RunError> {
    let parts = source.parts_with_pairs();
    if parts.is_empty() || plan.config.dpo.references_in_step() {
        return Ok(());
    }
    let file = file(&plan.config);
    let kept = match &file {
        Some(file) => kept(group, file, &parts)?,
        None => None,
    };
    let references = match (kept, moment) {
        (Some(kept), Moment::BeforeTheFirstStep) => {
            check_model(plan, group, stage, parts[0], &kept[0])?;
            kept
        }
        (Some(kept), Moment::Later) => kept,
        (None, Moment::Later) => return Err(gone(&plan.config).into()),
        (None, Moment::BeforeTheFirstStep) => {
            let all = parts.iter().map(|part| part.pairs()).sum();
            say_first(
                group,
                &format!(
                    "computes the log-probabilities of {} under the first weights",
                    counted(all, plan.config.data.kind().word())
                ),
            );
            let mut references = Vec::new();
            for part in &parts {
                references.push(computed(plan, group, stage, part, part.count())?);
            }
            if let (0, Some(file)) = (group.rank(), &file) {
                keep(file, &parts, &references)?;
            }
            references
        }
    };
    parts.iter().zip(references).for_each(|(part, references)| part.set_references(references));
    Ok(())
}

fn say_first(group: &ProcessGroup, line: &str) {
    if group.rank() == 0 {
        tell(line);
    }
}

/// The mistake of a run that goes on without its references.
fn gone(config: &RunConfig) -> UserError {
    let file = file(config);
    let what = match file {
        Some(file) => format!("{} is not there, and the run goes on from a checkpoint", file.display()),
        None => {
            let data = config.data.kind().option();
            format!("a run with data.{data} goes on from a checkpoint, and names no file of references")
        }
    };
    UserError::new(
        what,
        "log-probabilities of answers are compared with those under the first weights of the run, which have changed since",
        "name the file that its first start made (--dpo-references FILE), or start a new run",
    )
}

/// The references in the file, by part; `None` without the file. Rank 0 reads it.
///
/// # Errors
/// A file that is damaged, or of other pairs.
fn kept(
    group: &ProcessGroup,
    file: &Path,
    parts: &[&Conversations],
) -> Result<Option<Vec<Vec<ReferenceLogps>>>, RunError> {
    let mut text = String::new();
    if group.rank() == 0 && file.exists() {
        let read = read_file(file, LARGEST).map_err(file_error(file.display().to_string()))?;
        // An empty file is damaged, and not one that is missing.
        text = String::from_utf8_lossy(&read).into_owned() + "\n";
    }
    let text = group.control.broadcast_text(0, text);
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |what: String| {
        UserError::new(
            format!("{} {what}", file.display()),
            "it has the log-probabilities of the answers of this run's pairs",
            "name another file (--dpo-references), or move this one away: then they are computed again, before a first step",
        )
    };
    let kept: Kept =
        serde_json::from_str(&text).map_err(|error| wrong(format!("is no file of references: {error}")))?;
    let is_same =
        |(part, kept): (&&Conversations, &KeptPart)| part.digest() == kept.sha256 && part.pairs() == kept.logps.len();
    if kept.parts.len() != parts.len() || !parts.iter().zip(&kept.parts).all(is_same) {
        let pairs: usize = kept.parts.iter().map(|part| part.logps.len()).sum();
        return Err(
            wrong(format!("is about {} with other tokens, or divided otherwise", counted(pairs, "pair"))).into()
        );
    }
    Ok(Some(kept.parts.into_iter().map(|part| part.logps).collect()))
}

/// Writes the file of references, so that the whole file is there or nothing.
fn keep(file: &Path, parts: &[&Conversations], references: &[Vec<ReferenceLogps>]) -> Result<(), RunError> {
    let part = |(part, logps): (&&Conversations, &Vec<ReferenceLogps>)| KeptPart {
        sha256: part.digest(),
        logps: logps.clone(),
    };
    let kept = Kept { parts: parts.iter().zip(references).map(part).collect() };
    let written = serde_json::to_vec(&kept)
        .map_err(std::io::Error::from)
        .and_then(|text| replace_file(file, |file| file.write_all(&text)));
    written.map_err(file_error(file.display().to_string()))?;
    tell(&format!("they are kept in {}", file.display()));
    Ok(())
}

/// Fails unless the file's references are those of the weights that the stage has, by the first batch of pairs.
fn check_model(
    plan: &RunPlan,
    group: &ProcessGroup,
    stage: &mut Stage,
    part: &Conversations,
    kept: &[ReferenceLogps],
) -> Result<(), RunError> {
    let samples = part.count().min(plan.batch.global as u64);
    let here = computed(plan, group, stage, part, samples)?;
    for pair in (0..samples).flat_map(|sample| part.pairs_of(sample)) {
        for (here, kept) in here[*pair as usize].iter().zip(&kept[*pair as usize]) {
            // Not if one of them is no number.
            let is_near = f64::from((here - kept).abs()) <= ROUNDING * f64::from(kept.abs()).max(1.0);
            if !is_near {
                let file = file(&plan.config).unwrap_or_default();
                return Err(UserError::new(
                    format!(
                        "{} is of another model: an answer of {} {} has log-probability {kept} there, and {here} here",
                        file.display(),
                        plan.config.data.kind().word(),
                        pair + 1
                    ),
                    "references are those of the model that training starts from",
                    "name another file (--dpo-references), or move this one away",
                )
                .into());
            }
        }
    }
    Ok(())
}

/// The log-probabilities of the answers in the first `samples` samples of a part, under the weights that the stage has; 0
/// for answers in other samples. All ranks get the same.
fn computed(
    plan: &RunPlan,
    group: &ProcessGroup,
    stage: &mut Stage,
    part: &Conversations,
    samples: u64,
) -> Result<Vec<ReferenceLogps>, RunError> {
    let data_rank = plan.parallel.data_rank(group.rank());
    let mut own = Vec::new();
    for (index, first) in (0..samples).step_by(plan.batch.global).enumerate() {
        let share = plan.batch.share_of_global(first, data_rank);
        let batch = stage.needs_batch().then(|| HostValues::I32(part.rows(share.first_sample, share.samples).into()));
        let pairs = part.targets(first..part.count().min(first + plan.batch.global as u64));
        let settings = StepSettings { targets: Some(pairs), ..step_settings(&plan.optimizer, index, share, None) };
        let results = group.activity.during(Doing::Evaluates, || {
            let pending = stage.evaluate(settings, batch.as_ref())?;
            let results = [stage.losses(share.microbatches)?, stage.first_losses(share.microbatches)?];
            pending.wait()?;
            let [results, mismatched] = results.map(|results| results.map(|results| results.wait()).transpose());
            Ok::<_, RunError>((results?, mismatched?))
        })?;
        // Ranks that divide samples have the same results.
        let (results, mismatched) = results;
        let Some(results) = results.filter(|_| group.ranks.at(Axis::Context).is_first()) else { continue };
        let of_sample = results.len() / share.samples;
        let numbers = share.first_sample..part.count().min(share.first_sample + share.samples as u64);
        for (at, number) in numbers.enumerate() {
            for (place, pair) in part.pairs_of(number).iter().enumerate() {
                let of_pair = |results: &[f32]| {
                    let first = at * of_sample + place * PairLoss::RESULTS;
                    PairLoss::LOG_PROBABILITIES.map(|which| f64::from(results[first + which]))
                };
                let logps = match &mismatched {
                    None => of_pair(&results),
                    // An answer with a label is alone: the other's log-probability is 0.
                    Some(mismatched) => [&results, mismatched].map(|results| of_pair(results).iter().sum()),
                };
                own.extend([0, 1].map(|which| (2 * *pair as usize + which, logps[which])));
            }
        }
    }
    let all = on_all_ranks(plan, group, &own, 2 * part.pairs());
    Ok(all.chunks(2).map(|pair| [pair[0] as f32, pair[1] as f32]).collect())
}
