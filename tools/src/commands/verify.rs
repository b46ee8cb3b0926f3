//! `trainer verify layout`: whether a layout has the numbers of one rank.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use common::Mistakes;
use common::format::counted;
use common::terminal::warn;

use super::args::training_run;
use crate::verify::{STEPS, Trial, Verdict, trials, words};
use trainer::config::request::TrainRequest;
use trainer::error::RunError;

/// A layout to verify.
#[derive(Clone, Debug)]
pub struct VerifyRequest {
    run: TrainRequest,
    ranks: usize,
    /// Say what would be compared, and stop.
    dry_run: bool,
}

pub(super) fn command() -> Command {
    let layout = Command::new("layout")
        .about(
            "Trains a small model with the run's features in its layout, on threads of this host, and compares losses, \
             gradients and updates with those of one rank: trainer verify layout --ranks 8 -- FLAGS",
        )
        .arg(
            Arg::new("ranks")
                .long("ranks")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..=1 << 17))
                .required(true)
                .help("Ranks of the run"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Prints what would be compared, and stops"),
        )
        .arg(Arg::new("flags").value_name("FLAGS").last(true).num_args(0..).help("The trainer's flags"));
    Command::new("verify")
        .about("Verifies a run's layout before the run: the same numbers as one rank")
        .subcommand_required(true)
        .subcommand(layout)
}

/// The layout that a command line asks for. Everything that is wrong with the flags is added to `mistakes`.
pub(super) fn request(matches: &ArgMatches, mistakes: &mut Mistakes) -> Option<VerifyRequest> {
    let (_, matches) = matches.subcommand()?;
    let flags = matches.get_many::<String>("flags").into_iter().flatten().map(OsString::from);
    let run = training_run([OsString::from("trainer")].into_iter().chain(flags), mistakes)?;
    let ranks = matches.get_one::<u32>("ranks").map_or(1, |ranks| *ranks as usize);
    Some(VerifyRequest { run, ranks, dry_run: matches.get_flag("dry-run") })
}

/// Compares every layout with one rank; returns what was compared, in lines.
///
/// # Errors
/// Flags that break a rule; a layout with other numbers.
pub(super) fn run(request: &VerifyRequest) -> Result<String, RunError> {
    let VerifyRequest { run, ranks, dry_run } = request;
    let trials = trials(&run.config, *ranks)?;
    run.notices.iter().for_each(|notice| warn(&format!("notice: {notice}")));
    let mut replaced: Vec<&String> = trials.iter().flat_map(Trial::replaced).collect();
    replaced.sort();
    replaced.dedup();
    replaced.into_iter().for_each(|line| warn(&format!("notice: not compared: {line}")));
    let lines = trials.iter().map(|trial| {
        let ranks = counted(trial.mesh.ranks(), "rank");
        let what = format!("{}, {ranks}, {STEPS} steps of {}", words(trial.mesh), trial.sizes());
        match dry_run {
            true => Ok(format!("would compare with one rank: {what}")),
            false => match trial.verdict()? {
                Verdict::Same(lines) => Ok(format!("same numbers as one rank: {what}\n  {}", lines.join("\n  "))),
                Verdict::Differs(found) => Err(RunError::Layout(found)),
            },
        }
    });
    Ok(lines.collect::<Result<Vec<String>, RunError>>()?.join("\n"))
}
