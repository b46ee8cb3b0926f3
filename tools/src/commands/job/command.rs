//! The flags of `trainer job`, and their values.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use common::UserError;
use launch::Starter;

use crate::commands::args::text_flag;
use crate::commands::supervise::max_restarts;

pub(in crate::commands) fn command() -> Command {
    let clusters = [slurm(), hosts(), kubernetes()].map(|command| {
        command
            .arg(text_flag("name", "NAME", "The job's name").default_value("trainer"))
            .arg(count("ranks-per-node", "Ranks on each machine, each with a GPU").default_value("8"))
            .arg(max_restarts())
            .arg(text_flag(
                "gpu",
                "GPU",
                "Kind of the GPUs, as in `trainer plan`. A run that does not fit it is refused",
            ))
            .arg(Arg::new("flags").value_name("FLAGS").last(true).num_args(0..).help("The trainer's flags"))
    });
    Command::new("job")
        .about("Prints a job file that runs the trainer on a cluster, under `trainer supervise`")
        .subcommand_required(true)
        .subcommands(clusters)
}

fn slurm() -> Command {
    let starter = PossibleValuesParser::new(["mpirun", "srun"])
        .map(|word| if word == "srun" { Starter::Srun } else { Starter::Mpirun });
    let exclusive = Arg::new("exclusive").long("exclusive").action(ArgAction::SetTrue);
    Command::new("slurm")
        .about("Prints a script for sbatch")
        .args([nodes(), notice()])
        .arg(text_flag("time", "TIME", "Time limit of one start, in Slurm's form").default_value("24:00:00"))
        .arg(text_flag("partition", "NAME", "Partition. If not given: the cluster's default"))
        .arg(text_flag("account", "NAME", "Account. If not given: the user's default"))
        .arg(text_flag("qos", "NAME", "Quality of service. If not given: the account's default"))
        .arg(count("cpus-per-task", "CPUs of each rank. If not given: the cluster's default, often 1"))
        .arg(exclusive.help("No other job uses the nodes"))
        .arg(
            lines("sbatch", "OPTION", "Another option of sbatch, such as --constraint=h100. May be given again")
                .allow_hyphen_values(true),
        )
        .arg(setup())
        .arg(
            text_flag("starter", "PROGRAM", "What starts the ranks. srun needs Slurm and Open MPI with PMIx")
                .value_parser(starter)
                .default_value("mpirun"),
        )
        .arg(text_flag("container-image", "IMAGE", "Runs the ranks in containers of Pyxis. Needs --starter srun"))
        .arg(
            text_flag("apptainer", "IMAGE", "Runs the ranks in containers of Apptainer")
                .conflicts_with("container-image"),
        )
        .arg(
            text_flag(
                "container-mounts",
                "FOLDERS",
                "Folders that containers see besides the current one, with commas between them",
            )
            .value_delimiter(','),
        )
        .arg(only_on_nodes())
}

fn hosts() -> Command {
    Command::new("hosts")
        .about("Prints a script for machines reached by ssh")
        .arg(
            text_flag("hosts", "HOSTS", "Names of the machines, with commas between them")
                .value_delimiter(',')
                .required(true),
        )
        .arg(setup())
        .arg(only_on_nodes())
}

fn kubernetes() -> Command {
    Command::new("kubernetes")
        .about("Prints a manifest for Kubeflow's MPI operator")
        .args([nodes(), notice()])
        .arg(text_flag("image", "IMAGE", "Container with the trainer, Open MPI and an ssh server").required(true))
        .arg(text_flag("claim", "NAME", "Volume claim of the storage that all pods share").required(true))
        .arg(text_flag("mount", "PATH", "Where the pods mount that storage").default_value("/data"))
}

fn count(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u32).range(1..=100_000)).help(help)
}

fn nodes() -> Arg {
    count("nodes", "Machines").default_value("1")
}

fn notice() -> Arg {
    count("notice-seconds", "Seconds between the request to end and the end: enough for one step and one checkpoint")
        .default_value("300")
}

/// A flag that may be given several times.
fn lines(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    text_flag(name, value, help).action(ArgAction::Append)
}

fn setup() -> Arg {
    lines("setup", "COMMAND", "Line to run first, such as `module load openmpi`. May be given again")
}

fn only_on_nodes() -> Arg {
    let help = "Folder that this machine lacks and the job's have. Paths in it are not looked for. May be given again";
    lines("only-on-nodes", "FOLDER", help)
}

/// The value of a number; 0 for a flag that the cluster's command lacks.
pub(super) fn number(matches: &ArgMatches, name: &str) -> usize {
    matches.try_get_one::<u32>(name).ok().flatten().map_or(0, |number| *number as usize)
}

/// All values of a flag.
pub(super) fn texts(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many(name).into_iter().flatten().cloned().collect()
}

/// Fails on a value with other characters than letters, digits and `besides`.
pub(super) fn check_letters(flag: &str, value: &str, besides: &str) -> Result<(), UserError> {
    if value.chars().all(|letter| letter.is_ascii_alphanumeric() || besides.contains(letter)) {
        return Ok(());
    }
    let rule = format!("the value consists of letters, digits and any of {besides}");
    Err(UserError::new(format!("--{flag} {value}"), rule, "leave out the other characters"))
}
