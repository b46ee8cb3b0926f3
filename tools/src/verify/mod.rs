//! Whether a layout has the numbers of one rank.
//!
//! A small model with the run's features takes a few steps on one rank, and in the layout on ranks that are threads of
//! this host. `small.rs` makes it, `layouts.rs` chooses the ranks, `samples.rs` has its samples, `numbers.rs` runs it,
//! and `values.rs` reads what steps leave. `compare.rs` finds the first number that differs (`difference.rs`), and
//! `cause.rs` the axis that it differs over. The ranks also save a checkpoint that one rank loads (`checkpoint.rs`).

mod cause;
mod checkpoint;
mod compare;
mod difference;
mod layouts;
mod numbers;
#[cfg(test)]
mod pairs;
#[cfg(test)]
mod planted;
mod samples;
mod small;
mod values;

use parallel::Mesh;
use trainer::config::RunConfig;
use trainer::config::plan::RunPlan;
use trainer::error::RunError;

use cause::cause;
use compare::{Bounds, compare};
use layouts::layouts;
pub(crate) use layouts::words;
pub(crate) use numbers::STEPS;
use numbers::{Numbers, numbers};
use small::{Rounded, Small, alone, in_f32, in_layout, small};

/// A layout to verify: the small model for it.
pub(crate) struct Trial {
    /// The ranks.
    pub(crate) mesh: Mesh,
    small: Small,
}

/// A layout that was verified.
pub(crate) enum Verdict {
    /// All numbers agree with one rank's; what was compared, in lines.
    Same(Vec<String>),
    /// Some numbers are others: which, and over which axis, in words.
    Differs(String),
}

/// Seeds of weights that are tried in turn while tokens choose other experts than on one rank. Two experts whose scores
/// are the same but for rounding may change places, and hardly do so under each of these seeds.
const SEEDS: u64 = 3;

/// The layouts that show whether a run on `ranks` ranks has the numbers of one rank. Up to 16 ranks that is its own.
///
/// # Errors
/// A configuration that breaks a rule, or has no small model.
pub(crate) fn trials(config: &RunConfig, ranks: usize) -> Result<Vec<Trial>, RunError> {
    let plan = RunPlan::new(config.clone(), ranks)?;
    let trial = |mesh| Ok(Trial { mesh, small: small(&plan, mesh)? });
    layouts(plan.parallel.mesh).into_iter().map(trial).collect()
}

impl Trial {
    /// The sizes of the small model, in words.
    pub(crate) fn sizes(&self) -> String {
        self.small.sizes()
    }

    /// Settings that the small model has otherwise, or not at all: a line each.
    pub(crate) fn replaced(&self) -> &[String] {
        &self.small.replaced
    }

    /// Runs and compares: first in f32, then in the run's own number format.
    ///
    /// # Errors
    /// A step that fails.
    pub(crate) fn verdict(&self) -> Result<Verdict, RunError> {
        self.verdict_of(&mut |config, ranks| numbers(config, ranks))
    }

    /// As [`Trial::verdict`]; `run` has the numbers of all ranks.
    fn verdict_of(&self, run: &mut Run<'_>) -> Result<Verdict, RunError> {
        let Small { config, rounded, .. } = &self.small;
        let mut lines = match self.compared(config, Bounds::Sums, SEEDS, run)? {
            Ok(lines) => lines,
            Err(found) => return Ok(Verdict::Differs(format!("{}, {found}", words(self.mesh)))),
        };
        if let Some(Rounded { format, config }) = rounded {
            let exact = run(&alone(&in_f32(config)), 1)?.ranks.swap_remove(0);
            match self.compared(config, Bounds::Rounding(&exact), 1, run)? {
                Ok(compared) => lines.extend(compared.into_iter().map(|line| format!("{format}: {line}"))),
                Err(found) => return Ok(Verdict::Differs(format!("{}, in {format}, {found}", words(self.mesh)))),
            }
        }
        Ok(Verdict::Same(lines))
    }

    /// What was compared, in lines; or what differs, and over which axis, in words. While tokens choose other experts,
    /// the next of `seeds` seeds is tried.
    fn compared(
        &self,
        config: &RunConfig,
        bounds: Bounds<'_>,
        seeds: u64,
        run: &mut Run<'_>,
    ) -> Result<Result<Vec<String>, String>, RunError> {
        let mut config = config.clone();
        let last = config.train.seed + seeds - 1;
        let (alone, found) = loop {
            let alone = run(&alone(&config), 1)?.ranks.swap_remove(0);
            match compare(&alone, &run(&in_layout(&config, self.mesh), self.mesh.ranks())?, bounds) {
                Ok(compared) => return Ok(Ok(compared.lines())),
                Err(found) if found.choices.is_some() && config.train.seed < last => config.train.seed += 1,
                Err(found) => break (alone, found),
            }
        };
        let cause = cause(self.mesh, &found, &mut |mesh| {
            let config = in_layout(&config, mesh);
            // The small model may not be divisible so.
            match RunPlan::new(config.clone(), mesh.ranks()) {
                Ok(_) => Ok(Some(compare(&alone, &run(&config, mesh.ranks())?, bounds).is_err())),
                Err(_) => Ok(None),
            }
        })?;
        Ok(Err(format!("{found}{cause}")))
    }
}

/// Gives the numbers of all ranks of a configuration.
type Run<'r> = dyn FnMut(&RunConfig, usize) -> Result<Numbers, RunError> + 'r;
