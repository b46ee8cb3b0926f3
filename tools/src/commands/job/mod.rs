//! `trainer job`: the file that a cluster needs to run the trainer under `trainer supervise`.

mod command;
mod paths;
mod slurm;

use clap::ArgMatches;
use common::escape::is_plain;
use common::{Mistakes, UserError};
use launch::Job;

use super::args::training_run;
use super::plan::fitting_named_gpu;
use super::supervise::{Restarts, no_checkpoints};
pub(super) use command::Cluster;
use command::{HostsFlags, JobFlags, KubernetesFlags, Machines, Nodes, SlurmFlags, check_letters};
use paths::RunPaths;
use trainer::config::plan::RunPlan;
use trainer::config::{DeviceChoice, ModelKind};

/// A job file, with notices for the user before the job's submission.
#[derive(Clone, Debug)]
pub struct JobFile {
    pub(super) text: String,
    pub(super) notices: Vec<String>,
}

/// The file for a cluster. Everything that is wrong with the run, planned for its ranks, is added to `mistakes`, with paths that
/// the cluster will not find, and values that it does not accept. `matches` are those of `cluster`.
pub(super) fn file(cluster: Cluster, matches: &ArgMatches, mistakes: &mut Mistakes) -> Option<JobFile> {
    mistakes.keep(check_plain(matches))?;
    match cluster {
        Cluster::Hosts(HostsFlags { hosts, machines: Machines { setup, only_on_nodes }, job: flags }) => {
            mistakes.keep(hosts.iter().try_for_each(|host| check_letters("hosts", host, "-.")));
            mistakes.keep(check_once(&hosts));
            let checked = mistakes.keep(slurm::check_setup(&setup));
            let nodes = Nodes { nodes: hosts.len(), notice_seconds: 0 };
            let (job, paths, notices) = job(flags, &nodes, mistakes)?;
            mistakes.keep(paths.check_there(&only_on_nodes));
            checked.map(|()| JobFile { text: job.hosts(&hosts, &setup), notices })
        }
        Cluster::Kubernetes(KubernetesFlags { nodes, image, claim, mount, job: flags }) => {
            let (job, paths, mut notices) = job(flags, &nodes, mistakes)?;
            notices.extend(mistakes.keep(paths.check_pods(&mount))?);
            Some(JobFile { text: job.kubernetes(&image, &claim, &mount), notices })
        }
        Cluster::Slurm(flags) => {
            let slurm = mistakes.keep(slurm::settings(&flags));
            let SlurmFlags { nodes, machines: Machines { only_on_nodes, .. }, job: flags, .. } = *flags;
            let (job, paths, notices) = job(flags, &nodes, mistakes)?;
            mistakes.keep(paths.check_there(&only_on_nodes));
            let slurm = slurm?;
            if let Some(container) = &slurm.container {
                mistakes.keep(paths.check_container(&container.folders, &only_on_nodes));
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
        let name = if id == "flags" { "FLAGS".to_string() } else { format!("--{}", id.as_str().replace('_', "-")) };
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

/// The job, the paths of the job's run, and notices. The run is planned for all ranks here, so that a mistake is refused
/// now and not after hours in the queue. `None` if the run's flags cannot be read.
fn job(flags: JobFlags, nodes: &Nodes, mistakes: &mut Mistakes) -> Option<(Job, RunPaths, Vec<String>)> {
    let JobFlags { name, ranks_per_node, restarts: Restarts { max_restarts }, gpu, flags } = flags;
    let Nodes { nodes, notice_seconds } = *nodes;
    let run = training_run(&flags, mistakes)?;
    let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.chars().all(letters) {
        let rule = "a name consists of lower-case letters, digits and hyphens, and starts with a letter";
        mistakes.add(UserError::new(format!("--name {name}"), rule, "choose such a name, which all clusters accept"));
    }
    let config = &run.config;
    mistakes.keep(config.checkpoint.dir.as_ref().ok_or_else(no_checkpoints));
    let gpus = config.train.device != DeviceChoice::Host;
    let plan = RunPlan::check(config.clone(), nodes * ranks_per_node, mistakes);
    if let (Some(gpu), Some(plan)) = (&gpu, &plan) {
        mistakes.keep(fitting_named_gpu(gpu, plan));
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
    Some((Job { name, nodes, ranks_per_node, gpus, trainer, flags, max_restarts, notice_seconds }, paths, notices))
}
