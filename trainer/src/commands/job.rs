//! `trainer job`: the file that a cluster needs to run the trainer under `trainer supervise`.

use std::ffi::OsString;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgMatches, Command, value_parser};
use common::UserError;
use launch::{Job, Slurm, Starter};

use super::args::{text, text_flag, training_run};
use super::supervise::{max_restarts, no_checkpoints};
use crate::config::DeviceChoice;
use crate::config::plan::RunPlan;

pub(super) fn command() -> Command {
    let starter = PossibleValuesParser::new(["mpirun", "srun"])
        .map(|word| if word == "srun" { Starter::Srun } else { Starter::Mpirun });
    let slurm = Command::new("slurm")
        .about("Prints a script for sbatch")
        .args([nodes(), notice()])
        .arg(text_flag("time", "TIME", "Time limit of one start, in Slurm's form").default_value("24:00:00"))
        .arg(text_flag("partition", "NAME", "Partition. If not given: the cluster's default"))
        .arg(text_flag("account", "NAME", "Account. If not given: the user's default"))
        .arg(
            text_flag("starter", "PROGRAM", "What starts the ranks. srun needs Slurm and Open MPI with PMIx")
                .value_parser(starter)
                .default_value("mpirun"),
        );
    let hosts = Command::new("hosts").about("Prints a script for machines reached by ssh").arg(
        text_flag("hosts", "HOSTS", "Names of the machines, with commas between them")
            .value_delimiter(',')
            .required(true),
    );
    let kubernetes = Command::new("kubernetes")
        .about("Prints a manifest for Kubeflow's MPI operator")
        .args([nodes(), notice()])
        .arg(text_flag("image", "IMAGE", "Container with the trainer, Open MPI and an ssh server").required(true))
        .arg(text_flag("claim", "NAME", "Volume claim of the storage that all pods share").required(true))
        .arg(text_flag("mount", "PATH", "Where the pods mount that storage").default_value("/data"));
    let clusters = [slurm, hosts, kubernetes].map(|command| {
        command
            .arg(text_flag("name", "NAME", "The job's name").default_value("trainer"))
            .arg(count("ranks-per-node", "Ranks on each machine, each with a GPU").default_value("8"))
            .arg(max_restarts())
            .arg(Arg::new("flags").value_name("FLAGS").last(true).num_args(0..).help("The trainer's flags"))
    });
    Command::new("job")
        .about("Prints a job file that runs the trainer on a cluster, under `trainer supervise`")
        .subcommand_required(true)
        .subcommands(clusters)
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

fn number(matches: &ArgMatches, name: &str) -> usize {
    matches.try_get_one::<u32>(name).ok().flatten().map_or(0, |number| *number as usize)
}

/// The file for a cluster.
///
/// # Errors
/// Everything that is wrong with the run, planned for its ranks, and names that a cluster does not accept.
pub(super) fn file(matches: &ArgMatches) -> Result<String, UserError> {
    let Some((cluster, matches)) = matches.subcommand() else { return Ok(String::new()) };
    match cluster {
        "hosts" => {
            let hosts: Vec<String> = matches.get_many("hosts").into_iter().flatten().cloned().collect();
            hosts.iter().try_for_each(|host| check_letters("hosts", host, "-."))?;
            Ok(job(matches, hosts.len())?.hosts(&hosts))
        }
        "kubernetes" => {
            let [image, claim, mount] = ["image", "claim", "mount"].map(|name| text(matches, name).unwrap_or_default());
            let job = job(matches, number(matches, "nodes"))?;
            Ok(Job { trainer: "trainer".into(), ..job }.kubernetes(&image, &claim, &mount))
        }
        _ => {
            let (time, partition) = (text(matches, "time").unwrap_or_default(), text(matches, "partition"));
            let account = text(matches, "account");
            check_letters("time", &time, "-:")?;
            for (name, value) in [("partition", &partition), ("account", &account)] {
                value.iter().try_for_each(|value| check_letters(name, value, "-_.,"))?;
            }
            let starter = matches.get_one("starter").copied().unwrap_or(Starter::Mpirun);
            Ok(job(matches, number(matches, "nodes"))?.slurm(&Slurm { time, partition, account, starter }))
        }
    }
}

/// The job. Its run is planned for all ranks here, so that a mistake is refused now and not after hours in the queue.
fn job(matches: &ArgMatches, nodes: usize) -> Result<Job, UserError> {
    let flags: Vec<String> = matches.get_many("flags").into_iter().flatten().cloned().collect();
    let run = training_run(["trainer".to_string()].iter().chain(&flags).map(OsString::from))?;
    let name = text(matches, "name").unwrap_or_default();
    let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.chars().all(letters) {
        let rule = "a name consists of lower-case letters, digits and hyphens, and starts with a letter";
        return Err(UserError::new(format!("--name {name}"), rule, "choose such a name, which all clusters accept"));
    }
    let ranks_per_node = number(matches, "ranks-per-node");
    let gpus = run.config.train.device != DeviceChoice::Host;
    run.config.checkpoint.dir.as_ref().ok_or_else(no_checkpoints)?;
    RunPlan::new(run.config, nodes * ranks_per_node)?;
    let trainer = std::env::current_exe().unwrap_or("trainer".into()).display().to_string();
    let (max_restarts, notice_seconds) = (number(matches, "max-restarts"), number(matches, "notice-seconds"));
    Ok(Job { name, nodes, ranks_per_node, gpus, trainer, flags, max_restarts, notice_seconds })
}

/// Fails on a value with other characters than letters, digits and `besides`.
fn check_letters(flag: &str, value: &str, besides: &str) -> Result<(), UserError> {
    if value.chars().all(|letter| letter.is_ascii_alphanumeric() || besides.contains(letter)) {
        return Ok(());
    }
    let rule = format!("the value consists of letters, digits and any of {besides}");
    Err(UserError::new(format!("--{flag} {value}"), rule, "leave out the other characters"))
}
