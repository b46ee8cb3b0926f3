//! Whether a layout has the numbers of one rank.
//!
//! A small model with the run's features takes a few steps on one rank, and in the layout on ranks that are threads of
//! this host. `small.rs` makes it, `layouts.rs` chooses the ranks, `samples.rs` has its samples, `numbers.rs` runs it.
//! `compare.rs` finds the first number that differs, and `cause.rs` the axis that it differs over.

mod cause;
mod compare;
mod layouts;
mod numbers;
#[cfg(test)]
mod pairs;
#[cfg(test)]
mod planted;
mod samples;
mod small;

use parallel::Mesh;
use trainer::config::RunConfig;
use trainer::config::plan::RunPlan;
use trainer::error::RunError;

use cause::cause;
use compare::{Compared, compare};
use layouts::layouts;
pub(crate) use layouts::words;
pub(crate) use numbers::STEPS;
use numbers::{RankNumbers, numbers};
use small::{Small, alone, in_layout, small};

/// A layout to verify: the small model for it.
pub(crate) struct Trial {
    /// The ranks.
    pub(crate) mesh: Mesh,
    small: Small,
}

/// A layout that was verified.
pub(crate) enum Verdict {
    /// All numbers are those of one rank.
    Same(Compared),
    /// Some numbers are others: which, and over which axis, in words.
    Differs(String),
}

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

    /// Runs and compares.
    ///
    /// # Errors
    /// A step that fails.
    pub(crate) fn verdict(&self) -> Result<Verdict, RunError> {
        self.verdict_of(&mut |config, ranks| numbers(config, ranks))
    }

    /// As [`Trial::verdict`]; `run` has the numbers of all ranks.
    fn verdict_of(&self, run: &mut Run<'_>) -> Result<Verdict, RunError> {
        let config = &self.small.config;
        let alone = run(&alone(config), 1)?.swap_remove(0);
        let ranks = run(&in_layout(config, self.mesh), self.mesh.ranks())?;
        let found = match compare(&alone, &ranks) {
            Ok(compared) => return Ok(Verdict::Same(compared)),
            Err(found) => found,
        };
        let cause = cause(self.mesh, &found, &mut |mesh| {
            let config = in_layout(config, mesh);
            // The small model may not be divisible so.
            match RunPlan::new(config.clone(), mesh.ranks()) {
                Ok(_) => Ok(Some(compare(&alone, &run(&config, mesh.ranks())?).is_err())),
                Err(_) => Ok(None),
            }
        })?;
        Ok(Verdict::Differs(format!("{}, {found}{cause}", words(self.mesh))))
    }
}

/// Gives the numbers of all ranks of a configuration.
type Run<'r> = dyn FnMut(&RunConfig, usize) -> Result<Vec<RankNumbers>, RunError> + 'r;
