//! `trainer launch`: starts the trainer's ranks on this machine.

use std::ffi::OsString;
use std::iter::once;

use clap::{Arg, ArgMatches, Command, value_parser};
use common::{Mistakes, UserError};
use device::cuda::gpu_count;
use launch::watch::WatchSettings;
use launch::{Launcher, Mpirun, RankEnv};

use super::args::{Parsed, parse_line};
use trainer::config::plan::RunPlan;
use trainer::config::{DeviceChoice, RunConfig};
use trainer::run::accelerator::Accelerator;
use trainer::run::ranks::{fail, refuse};

/// Ranks to start.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// `None`: one for each visible GPU, or a single one.
    ranks: Option<usize>,
    /// The trainer's flags, alike for all ranks.
    flags: Vec<OsString>,
}

pub(super) fn command() -> Command {
    Command::new("launch")
        .about("Starts ranks on this machine, by mpirun: trainer launch -n 4 -- FLAGS")
        .arg(
            Arg::new("ranks")
                .short('n')
                .long("ranks")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..=4096))
                .help("Number of ranks. If not given: one for each visible GPU, or a single one"),
        )
        .arg(
            Arg::new("flags").value_name("FLAGS").value_parser(value_parser!(OsString)).last(true).num_args(0..).help(
                "The trainer's flags, the same for all ranks; or `bench`, `profile` or `doctor` with their flags",
            ),
        )
}

pub(super) fn request(matches: &ArgMatches) -> LaunchRequest {
    LaunchRequest {
        ranks: matches.get_one::<u32>("ranks").map(|ranks| *ranks as usize),
        flags: matches.get_many("flags").into_iter().flatten().cloned().collect(),
    }
}

impl LaunchRequest {
    /// Reads a command line `trainer launch ...`.
    ///
    /// # Errors
    /// Flags that `launch` does not have, or a request for its help.
    pub(super) fn read(arguments: &[OsString]) -> Result<LaunchRequest, UserError> {
        match parse_line(Command::new("trainer").subcommand(command()), arguments)? {
            Parsed::Matches(matches) => matches.subcommand_matches("launch").map(request),
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

    /// Runs `ranks` ranks to their end, or until they stand still for longer than `watch` allows; returns the exit code.
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
