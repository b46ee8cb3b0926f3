//! The command lines of `trainer supervise` and `trainer job`.

use std::ffi::OsString;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use common::UserError;
use launch::{Job, Slurm, Starter};

use crate::commands::supervise::{SuperviseRequest, no_checkpoints, training};
use crate::config::plan::RunPlan;

pub(super) fn supervise_command() -> Command {
    let command = Arg::new("command").value_name("COMMAND").value_parser(value_parser!(OsString));
    Command::new("supervise")
        .about("Runs a training command, and starts it again when it fails: trainer supervise -- mpirun -n 8 trainer --save DIR")
        .arg(max_restarts())
        .arg(command.last(true).required(true).num_args(1..).help("What to run. The trainer and its flags come last in it"))
}

pub(super) fn supervise_request(matches: &ArgMatches) -> Result<SuperviseRequest, UserError> {
    let command = matches.get_many::<OsString>("command").into_iter().flatten().cloned().collect();
    SuperviseRequest::new(command, number(matches, "max-restarts"))
}

fn max_restarts() -> Arg {
    Arg::new("max-restarts")
        .long("max-restarts")
        .value_name("N")
        .default_value("3")
        .value_parser(value_parser!(u32).range(..=1000))
        .help("Give up after more than this many starts in a row without a new checkpoint")
}

pub(super) fn job_command() -> Command {
    let slurm = Command::new("slurm")
        .about("Prints a script for sbatch")
        .args([nodes(), notice()])
        .arg(text("time", "TIME", "Time limit of one start, in Slurm's form").default_value("24:00:00"))
        .arg(text("partition", "NAME", "Partition. If not given: the cluster's default"))
        .arg(text("account", "NAME", "Account. If not given: the user's default"))
        .arg(
            text("starter", "PROGRAM", "What starts the ranks. srun needs Slurm and Open MPI with PMIx")
                .value_parser(["mpirun", "srun"])
                .default_value("mpirun"),
        );
    let hosts = Command::new("hosts").about("Prints a script for machines reached by ssh").arg(
        text("hosts", "HOSTS", "Names of the machines, with commas between them").value_delimiter(',').required(true),
    );
    let kubernetes = Command::new("kubernetes")
        .about("Prints a manifest for Kubeflow's MPI operator")
        .args([nodes(), notice()])
        .arg(text("image", "IMAGE", "Container with the trainer, Open MPI and an ssh server").required(true))
        .arg(text("claim", "NAME", "Volume claim of the storage that all pods share").required(true))
        .arg(text("mount", "PATH", "Where the pods mount that storage").default_value("/data"));
    let common = [slurm, hosts, kubernetes].map(|command| {
        command
            .arg(text("name", "NAME", "The job's name").default_value("trainer"))
            .arg(count("ranks-per-node", "Ranks on each machine, each with a GPU").default_value("8"))
            .arg(max_restarts())
            .arg(Arg::new("flags").value_name("FLAGS").last(true).num_args(0..).help("The trainer's flags"))
    });
    Command::new("job")
        .about("Prints a job file that runs the trainer on a cluster, under `trainer supervise`")
        .subcommand_required(true)
        .subcommands(common)
}

fn text(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).value_parser(NonEmptyStringValueParser::new()).help(help)
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

/// What the cluster takes.
pub(super) fn job_file(matches: &ArgMatches) -> Result<String, UserError> {
    let Some((cluster, matches)) = matches.subcommand() else { return Ok(String::new()) };
    let get = |name: &str| matches.get_one::<String>(name).cloned();
    match cluster {
        "hosts" => {
            let hosts: Vec<String> = matches.get_many("hosts").into_iter().flatten().cloned().collect();
            hosts.iter().try_for_each(|host| plain("hosts", host, "-."))?;
            Ok(job(matches, hosts.len())?.hosts(&hosts))
        }
        "kubernetes" => {
            let [image, claim, mount] = ["image", "claim", "mount"].map(|name| get(name).unwrap_or_default());
            let job = job(matches, number(matches, "nodes"))?;
            Ok(Job { trainer: "trainer".into(), ..job }.kubernetes(&image, &claim, &mount))
        }
        _ => {
            let (time, partition, account) = (get("time").unwrap_or_default(), get("partition"), get("account"));
            plain("time", &time, "-:")?;
            for (name, value) in [("partition", &partition), ("account", &account)] {
                value.iter().try_for_each(|value| plain(name, value, "-_.,"))?;
            }
            let starter = if get("starter").as_deref() == Some("srun") { Starter::Srun } else { Starter::Mpirun };
            Ok(job(matches, number(matches, "nodes"))?.slurm(&Slurm { time, partition, account, starter }))
        }
    }
}

/// The run, planned for its ranks: what cannot run is refused now and not in the queue.
fn job(matches: &ArgMatches, nodes: usize) -> Result<Job, UserError> {
    let flags: Vec<String> = matches.get_many("flags").into_iter().flatten().cloned().collect();
    let run = training(["trainer".to_string()].iter().chain(&flags).map(OsString::from))?;
    let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
    let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.chars().all(letters) {
        let rule = "all clusters take lower-case letters, digits and hyphens after a letter";
        return Err(UserError::new(format!("--name {name}"), rule, "write it so"));
    }
    let ranks_per_node = number(matches, "ranks-per-node");
    let gpus = run.config.train.device != "host";
    run.config.checkpoint.dir.as_ref().ok_or_else(no_checkpoints)?;
    RunPlan::new(run.config, nodes * ranks_per_node)?;
    let trainer = std::env::current_exe().unwrap_or("trainer".into()).display().to_string();
    let (max_restarts, notice_seconds) = (number(matches, "max-restarts"), number(matches, "notice-seconds"));
    Ok(Job { name, nodes, ranks_per_node, gpus, trainer, flags, max_restarts, notice_seconds })
}

/// Fails on a value of other characters than letters, digits and these.
fn plain(flag: &str, value: &str, besides: &str) -> Result<(), UserError> {
    if value.chars().all(|letter| letter.is_ascii_alphanumeric() || besides.contains(letter)) {
        return Ok(());
    }
    let rule = format!("it is made of letters, digits and any of {besides}");
    Err(UserError::new(format!("--{flag} {value}"), rule, "write it so"))
}
