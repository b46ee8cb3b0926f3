//! `trainer job`: the file that a cluster needs to run the trainer under `trainer supervise`.

mod command;
mod paths;
mod slurm;
mod time;

use std::ffi::OsString;

use clap::ArgMatches;
use common::escape::is_plain;
use common::{Mistakes, UserError};
use launch::Job;

use super::args::{text, training_run};
use super::plan::fitting_named_gpu;
use super::supervise::no_checkpoints;
pub(super) use command::command;
use command::{check_letters, number, texts};
use paths::RunPaths;
use trainer::config::plan::RunPlan;
use trainer::config::{DeviceChoice, ModelKind};

/// A job file, with notices for the user before its submission.
#[derive(Clone, Debug)]
pub struct JobFile {
    pub(super) text: String,
    pub(super) notices: Vec<String>,
}

/// The file for a cluster. Everything that is wrong with the run, planned for its ranks, is added to `mistakes`, with paths that
/// the cluster will not find, and values that it does not accept.
pub(super) fn file(matches: &ArgMatches, mistakes: &mut Mistakes) -> Option<JobFile> {
    let (cluster, matches) = matches.subcommand()?;
    mistakes.keep(check_plain(matches))?;
    match cluster {
        "hosts" => {
            let hosts = texts(matches, "hosts");
            mistakes.keep(hosts.iter().try_for_each(|host| check_letters("hosts", host, "-.")));
            mistakes.keep(check_once(&hosts));
            let setup = mistakes.keep(slurm::setup_lines(matches));
            let (job, paths, notices) = job(matches, hosts.len(), mistakes)?;
            mistakes.keep(paths.check_there(&texts(matches, "only-on-nodes")));
            Some(JobFile { text: job.hosts(&hosts, &setup?), notices })
        }
        "kubernetes" => {
            let [image, claim, mount] = ["image", "claim", "mount"].map(|name| text(matches, name).unwrap_or_default());
            let (job, paths, mut notices) = job(matches, number(matches, "nodes"), mistakes)?;
            notices.extend(mistakes.keep(paths.check_pods(&mount))?);
            Some(JobFile { text: job.kubernetes(&image, &claim, &mount), notices })
        }
        _ => {
            let slurm = mistakes.keep(slurm::settings(matches));
            let (job, paths, notices) = job(matches, number(matches, "nodes"), mistakes)?;
            let elsewhere = texts(matches, "only-on-nodes");
            mistakes.keep(paths.check_there(&elsewhere));
            let slurm = slurm?;
            if let Some(container) = &slurm.container {
                mistakes.keep(paths.check_container(&container.folders, &elsewhere));
            }
            Some(JobFile { text: job.slurm(&slurm), notices })
        }
    }
}

/// Fails if an argument has a control character. A job file would have another text in its place, and so another path: it is
/// printed, and its manifest is YAML.
fn check_plain(matches: &ArgMatches) -> Result<(), UserError> {
    let values = |id: &clap::Id| {
        let raw = matches.try_get_raw(id.as_str()).ok().flatten().into_iter().flatten();
        let name = if id == "flags" { "FLAGS".to_string() } else { format!("--{id}") };
        raw.map(move |value| (name.clone(), value.to_string_lossy().into_owned())).collect::<Vec<_>>()
    };
    match matches.ids().flat_map(values).find(|(_, value)| !is_plain(value)) {
        None => Ok(()),
        Some((name, value)) => Err(UserError::new(
            format!("{name} {value:?} has a control character, or one that nobody sees"),
            "what a job file holds is text in one line, which every terminal shows as it is",
            "give the file or folder another name, or leave the character out",
        )),
    }
}

/// Fails on a host that is named twice: Open MPI adds up the ranks of both, and so starts more on that machine than it has
/// GPUs. The names of hosts have no case.
fn check_once(hosts: &[String]) -> Result<(), UserError> {
    let rule = "every machine of the job is named once";
    for (place, host) in hosts.iter().enumerate() {
        if hosts[..place].iter().any(|earlier| earlier.eq_ignore_ascii_case(host)) {
            let fix = "name it once. --ranks-per-node N sets the ranks of each machine";
            return Err(UserError::new(format!("--hosts names {host} twice"), rule, fix));
        }
    }
    Ok(())
}

/// The job, the paths of its run, and notices. The run is planned for all ranks here, so that a mistake is refused now and
/// not after hours in the queue. `None` if the run's flags cannot be read.
fn job(matches: &ArgMatches, nodes: usize, mistakes: &mut Mistakes) -> Option<(Job, RunPaths, Vec<String>)> {
    let flags = texts(matches, "flags");
    let run = training_run(["trainer".to_string()].iter().chain(&flags).map(OsString::from), mistakes)?;
    let name = text(matches, "name").unwrap_or_default();
    let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.chars().all(letters) {
        let rule = "a name consists of lower-case letters, digits and hyphens, and starts with a letter";
        mistakes.add(UserError::new(format!("--name {name}"), rule, "choose such a name, which all clusters accept"));
    }
    let ranks_per_node = number(matches, "ranks-per-node");
    let config = &run.config;
    mistakes.keep(config.checkpoint.dir.as_ref().ok_or_else(no_checkpoints));
    let gpus = config.train.device != DeviceChoice::Host;
    let plan = RunPlan::check(config.clone(), nodes * ranks_per_node, mistakes);
    if let (Some(gpu), Some(plan)) = (text(matches, "gpu"), &plan) {
        mistakes.keep(fitting_named_gpu(&gpu, plan));
    }
    let mut notices = Vec::new();
    if config.model.kind == ModelKind::Gpt && config.data.path.is_none() {
        notices.push("the job trains on text from the embedded random source. For your own: --data-path PATHS".into());
    }
    let paths = RunPaths::of(config, &flags);
    let trainer = std::env::current_exe().unwrap_or("trainer".into()).display().to_string();
    if !is_plain(&trainer) {
        let rule = "a job file starts the trainer by its path, in one line of text";
        let fix = "move it to a folder without control characters in its path";
        mistakes.add(UserError::new(format!("the trainer's path is {trainer:?}"), rule, fix));
    }
    let (max_restarts, notice_seconds) = (number(matches, "max-restarts"), number(matches, "notice-seconds"));
    Some((Job { name, nodes, ranks_per_node, gpus, trainer, flags, max_restarts, notice_seconds }, paths, notices))
}
