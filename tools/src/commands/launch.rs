//! `trainer launch`: starts the trainer's ranks on this machine.

use std::ffi::OsString;
use std::iter::once;

use clap::{Args, Command};
use common::{Mistakes, UserError};
use device::cuda::gpu_count;
use launch::watch::WatchSettings;
use launch::{Launcher, Mpirun, RankEnv};

use super::args::{Parsed, parse_line, read, whole};
use trainer::config::plan::RunPlan;
use trainer::config::{DeviceChoice, RunConfig};
use trainer::run::accelerator::Accelerator;
use trainer::run::ranks::{fail, refuse};

/// Ranks to start.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct LaunchRequest {
    /// Number of ranks. If not given: one for each visible GPU, or a single one.
    #[arg(short = 'n', long, value_name = "N", value_parser = whole(1..=4096))]
    ranks: Option<usize>,
    /// The trainer's flags, the same for all ranks; or `bench`, `profile` or `doctor` with their flags.
    #[arg(value_name = "FLAGS", last = true, num_args = 0..)]
    flags: Vec<OsString>,
}

impl LaunchRequest {
    /// Reads a command line `trainer launch ...`.
    ///
    /// # Errors
    /// Flags that `launch` does not have, or a request for its help.
    pub(super) fn read(arguments: &[OsString]) -> Result<LaunchRequest, UserError> {
        let launch = LaunchRequest::augment_args(Command::new("launch"));
        match parse_line(Command::new("trainer").subcommand(launch), arguments)? {
            Parsed::Matches(matches) => matches.subcommand_matches("launch").map(read),
            Parsed::Help(_) => None,
        }
        .ok_or_else(|| UserError::new("launch --help", "it starts no ranks", "leave out --help"))
    }

    /// The command line of each rank.
    pub(super) fn rank_line(&self) -> impl Iterator<Item = OsString> {
        once("trainer".into()).chain(self.flags.iter().cloned())
    }

    /// The number of ranks for a run on `device`. With `config` (if the ranks train or measure) it checks the run for that
    /// number of ranks, so that everything that is wrong with it is told once, before mpirun starts. Ends the process if a
    /// launcher started it.
    pub(super) fn check(
        &self,
        config: Option<&RunConfig>,
        device: DeviceChoice,
        env: &RankEnv,
        mistakes: &mut Mistakes,
    ) -> usize {
        // A shell in a step of Slurm is a rank of its own, and may start others.
        if env.world_size > 1 || matches!(env.launcher, Some(Launcher::OpenMpi | Launcher::Hydra)) {
            let fix = "start it without mpirun or srun";
            refuse(
                env,
                &format!(
                    "`trainer launch` was itself started by mpirun or srun. Rule: one process starts the ranks. Fix: {fix}"
                ),
            );
        }
        let default = || if device == DeviceChoice::Host { 1 } else { gpu_count().max(1) };
        let ranks = self.ranks.unwrap_or_else(default);
        if let Some(config) = config {
            RunPlan::check(config.clone(), ranks, mistakes);
        }
        mistakes.keep(Accelerator::choose(device, &RankEnv::local(ranks)));
        ranks
    }

    /// Runs `ranks` ranks to the end, or until ranks stand still for longer than `watch` allows; returns the exit code.
    ///
    /// # Errors
    /// No mpirun, or another one than Open MPI's; no room in shared memory.
    pub(super) fn run(&self, ranks: usize, watch: &WatchSettings) -> Result<i32, UserError> {
        let mpirun = Mpirun::find()?;
        Mpirun::make_room(ranks)?;
        let program = std::env::current_exe().unwrap_or_else(|_| "trainer".into());
        let done = mpirun.run(ranks, &program, &self.flags, watch);
        Ok(done.unwrap_or_else(|error| fail(true, 3, &format!("mpirun cannot be started: {error}"))))
    }
}
