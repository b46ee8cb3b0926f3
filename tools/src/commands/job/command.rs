//! The flags of `trainer job`.

use std::ops::RangeInclusive;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Subcommand};
use common::UserError;
use launch::Starter;

use crate::commands::args::{filled, whole};
use crate::commands::supervise::Restarts;

/// The kind of a cluster, with its flags.
#[derive(Debug, Subcommand)]
pub(in crate::commands) enum Cluster {
    /// Prints a script for sbatch.
    Slurm(Box<SlurmFlags>),
    /// Prints a script for machines reached by ssh.
    Hosts(HostsFlags),
    /// Prints a manifest for Kubeflow's MPI operator.
    Kubernetes(KubernetesFlags),
}

/// The flags of all clusters.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(in crate::commands) struct JobFlags {
    /// The job's name.
    #[arg(long, value_name = "NAME", default_value = "trainer", value_parser = filled())]
    pub(super) name: String,
    /// Ranks on each machine, each with a GPU.
    #[arg(long, value_name = "N", default_value = "8", value_parser = whole(COUNT))]
    pub(super) ranks_per_node: usize,
    #[command(flatten)]
    pub(super) restarts: Restarts,
    /// Kind of the GPUs, as in `trainer plan`. A run that does not fit it is refused.
    #[arg(long, value_name = "GPU", value_parser = filled())]
    pub(super) gpu: Option<String>,
    /// The trainer's flags.
    #[arg(value_name = "FLAGS", last = true, num_args = 0..)]
    pub(super) flags: Vec<String>,
}

/// The flags of clusters that choose the machines themselves.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(in crate::commands) struct Nodes {
    /// Machines.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole(COUNT))]
    pub(super) nodes: usize,
    /// Seconds between the request to end and the end: enough for one step and one checkpoint.
    #[arg(long, value_name = "N", default_value = "300", value_parser = whole(COUNT))]
    pub(super) notice_seconds: usize,
}

/// The flags of clusters that are machines with this one's files.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(in crate::commands) struct Machines {
    /// Line to run first, such as `module load openmpi`. May be given again.
    #[arg(long, value_name = "COMMAND", value_parser = filled())]
    pub(super) setup: Vec<String>,
    /// Folder that this machine lacks and the job's have. Paths in it are not looked for. May be given again.
    #[arg(long, value_name = "FOLDER", value_parser = filled())]
    pub(super) only_on_nodes: Vec<String>,
}

#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(in crate::commands) struct SlurmFlags {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Time limit of one start, in Slurm's form.
    #[arg(long, value_name = "TIME", default_value = "24:00:00", value_parser = filled())]
    pub(super) time: String,
    /// Partition. If not given: the cluster's default.
    #[arg(long, value_name = "NAME", value_parser = filled())]
    pub(super) partition: Option<String>,
    /// Account. If not given: the user's default.
    #[arg(long, value_name = "NAME", value_parser = filled())]
    pub(super) account: Option<String>,
    /// Quality of service. If not given: the account's default.
    #[arg(long, value_name = "NAME", value_parser = filled())]
    pub(super) qos: Option<String>,
    /// CPUs of each rank. If not given: the cluster's default, often 1.
    #[arg(long, value_name = "N", value_parser = whole(COUNT))]
    pub(super) cpus_per_task: Option<usize>,
    /// No other job uses the nodes.
    #[arg(long)]
    pub(super) exclusive: bool,
    /// Another option of sbatch, such as --constraint=h100. May be given again.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, value_parser = filled())]
    pub(super) sbatch: Vec<String>,
    #[command(flatten)]
    pub(super) machines: Machines,
    /// What starts the ranks. srun needs Slurm and Open MPI with PMIx.
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun", value_parser = starter())]
    pub(super) starter: Starter,
    /// Runs the ranks in containers of Pyxis. Needs --starter srun.
    #[arg(long, value_name = "IMAGE", value_parser = filled())]
    pub(super) container_image: Option<String>,
    /// Runs the ranks in containers of Apptainer.
    #[arg(long, value_name = "IMAGE", value_parser = filled(), conflicts_with = "container_image")]
    pub(super) apptainer: Option<String>,
    /// Folders that containers see besides the current one, with commas between them.
    #[arg(long, value_name = "FOLDERS", action = ArgAction::Set, value_delimiter = ',', value_parser = filled())]
    pub(super) container_mounts: Vec<String>,
    #[command(flatten)]
    pub(super) job: JobFlags,
}

#[derive(Args, Debug)]
#[group(skip)]
pub(in crate::commands) struct HostsFlags {
    /// Names of the machines, with commas between them.
    #[arg(long, value_name = "HOSTS", required = true, value_parser = filled())]
    #[arg(action = ArgAction::Set, value_delimiter = ',')]
    pub(super) hosts: Vec<String>,
    #[command(flatten)]
    pub(super) machines: Machines,
    #[command(flatten)]
    pub(super) job: JobFlags,
}

#[derive(Args, Debug)]
#[group(skip)]
pub(in crate::commands) struct KubernetesFlags {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Container with the trainer, Open MPI and an ssh server.
    #[arg(long, value_name = "IMAGE", value_parser = filled())]
    pub(super) image: String,
    /// Volume claim of the storage that all pods share.
    #[arg(long, value_name = "NAME", value_parser = filled())]
    pub(super) claim: String,
    /// Where the pods mount that storage.
    #[arg(long, value_name = "PATH", default_value = "/data", value_parser = filled())]
    pub(super) mount: String,
    #[command(flatten)]
    pub(super) job: JobFlags,
}

const COUNT: RangeInclusive<i64> = 1..=100_000;

fn starter() -> impl TypedValueParser<Value = Starter> {
    PossibleValuesParser::new(["mpirun", "srun"])
        .map(|word| if word == "srun" { Starter::Srun } else { Starter::Mpirun })
}

/// Fails on a value with other characters than letters, digits and `besides`.
pub(super) fn check_letters(flag: &str, value: &str, besides: &str) -> Result<(), UserError> {
    if value.chars().all(|letter| letter.is_ascii_alphanumeric() || besides.contains(letter)) {
        return Ok(());
    }
    let rule = format!("the value consists of letters, digits and any of {besides}");
    Err(UserError::new(format!("--{flag} {value}"), rule, "leave out the other characters"))
}
