//! `trainer verify layout`: whether a layout has the numbers of one rank.

use clap::Args;
use common::Mistakes;
use common::format::counted;
use common::terminal::warn;

use super::args::{training_run, whole};
use crate::verify::{STEPS, Trial, Verdict, trials, words};
use trainer::config::request::TrainRequest;
use trainer::error::RunError;

/// A layout to verify.
#[derive(Clone, Debug)]
pub struct VerifyRequest {
    run: TrainRequest,
    flags: Flags,
}

/// The flags of `trainer verify layout`.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// Ranks of the run.
    #[arg(long, value_name = "N", value_parser = whole(1..=1 << 17))]
    ranks: usize,
    /// Prints what would be compared, and stops.
    #[arg(long)]
    dry_run: bool,
    /// The trainer's flags.
    #[arg(value_name = "FLAGS", last = true, num_args = 0..)]
    flags: Vec<String>,
}

impl Flags {
    /// The layout that a command line asks for. Everything that is wrong with the flags is added to `mistakes`.
    pub(super) fn request(self, mistakes: &mut Mistakes) -> Option<VerifyRequest> {
        let run = training_run(self.flags.clone(), mistakes)?;
        Some(VerifyRequest { run, flags: self })
    }
}

/// Compares every layout with one rank; returns what was compared, in lines.
///
/// # Errors
/// Flags that break a rule; a layout with other numbers.
pub(super) fn run(request: &VerifyRequest) -> Result<String, RunError> {
    let VerifyRequest { run, flags } = request;
    let trials = trials(&run.config, flags.ranks)?;
    run.notices.iter().for_each(|notice| warn(&format!("notice: {notice}")));
    let mut replaced: Vec<&String> = trials.iter().flat_map(Trial::replaced).collect();
    replaced.sort();
    replaced.dedup();
    replaced.into_iter().for_each(|line| warn(&format!("notice: not compared: {line}")));
    let lines = trials.iter().map(|trial| {
        let ranks = counted(trial.mesh.ranks(), "rank");
        let what = format!("{}, {ranks}, {STEPS} steps of {}", words(trial.mesh), trial.sizes());
        match flags.dry_run {
            true => Ok(format!("would compare with one rank: {what}")),
            false => match trial.verdict()? {
                Verdict::Same(lines) => Ok(format!("same numbers as one rank: {what}\n  {}", lines.join("\n  "))),
                Verdict::Differs(found) => Err(RunError::Layout(found)),
            },
        }
    });
    Ok(lines.collect::<Result<Vec<String>, RunError>>()?.join("\n"))
}
