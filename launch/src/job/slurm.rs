//! Scripts for Slurm's sbatch.

use super::{Job, exported, shell};

/// The program that starts the ranks of a Slurm job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// Open MPI's mpirun. It gets the nodes from Slurm.
    Mpirun,
    /// srun. Slurm and Open MPI must have PMIx.
    Srun,
}

/// Slurm's own settings of a job.
#[derive(Clone, Debug)]
pub struct Slurm {
    /// The time limit, such as `24:00:00`.
    pub time: String,
    /// The partition. `None` for the cluster's default.
    pub partition: Option<String>,
    /// The account. `None` for the user's default.
    pub account: Option<String>,
    /// The quality of service. `None` for the account's default.
    pub qos: Option<String>,
    /// The number of CPUs of each rank. `None` for the cluster's default, often one.
    pub cpus_per_task: Option<usize>,
    /// Whether no other job may use the nodes.
    pub exclusive: bool,
    /// Further options of sbatch, such as `--constraint=h100`. They override the others.
    pub more: Vec<String>,
    /// Lines that run before the supervisor, each a complete command.
    pub setup: Vec<String>,
    /// The program that starts the ranks.
    pub starter: Starter,
    /// The container that the ranks run in. `None` for the node itself.
    pub container: Option<Container>,
}

/// The container of each rank. It sees the folder that the job starts in.
#[derive(Clone, Debug)]
pub struct Container {
    /// The runtime that makes the container.
    pub runtime: ContainerRuntime,
    /// The image, in the runtime's own form. It contains the trainer and an Open MPI that fits the starter's.
    pub image: String,
    /// Further folders that the container sees, under the same path.
    pub folders: Vec<String>,
}

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerRuntime {
    /// NVIDIA's plug-in for srun.
    Pyxis,
    /// Apptainer. Its command starts in the place of the trainer.
    Apptainer,
}

impl Job {
    /// A script for sbatch.
    pub fn slurm(&self, slurm: &Slurm) -> String {
        let trainer = if slurm.container.is_some() { "trainer" } else { &self.trainer };
        let options: Vec<String> = self.options(slurm).iter().map(|option| format!("#SBATCH {option}\n")).collect();
        let more: Vec<String> = slurm.more.iter().map(|option| format!("#SBATCH {option}\n")).collect();
        let values = [("options", options.concat()), ("more", more.concat())];
        let values = values.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.script(include_str!("../../templates/slurm.sh"), &self.starter(slurm), trainer, &slurm.setup, &values)
    }

    fn options(&self, slurm: &Slurm) -> Vec<String> {
        let mut options = Vec::new();
        if self.gpus {
            options.push(format!("--gpus-per-node={}", self.ranks_per_node));
        }
        options.extend(slurm.cpus_per_task.map(|cpus| format!("--cpus-per-task={cpus}")));
        options.extend(slurm.exclusive.then(|| "--exclusive".to_string()));
        for (option, value) in [("partition", &slurm.partition), ("account", &slurm.account), ("qos", &slurm.qos)] {
            options.extend(value.iter().map(|value| format!("--{option}={value}")));
        }
        options.push(format!("--time={}", slurm.time));
        options
    }

    /// The shell's text that starts the ranks, up to the trainer.
    fn starter(&self, slurm: &Slurm) -> String {
        let mut text = match slurm.starter {
            Starter::Mpirun => {
                let ranks = self.ranks().to_string();
                format!("{}{}", shell(&["mpirun", "-n", &ranks, "--bind-to", "none"]), exported(&slurm.setup))
            }
            Starter::Srun => {
                // srun does not take the number of CPUs from the job's options.
                let cpus = slurm.cpus_per_task.map(|cpus| format!(" --cpus-per-task={cpus}"));
                format!("srun --mpi=pmix --cpu-bind=none{}", cpus.unwrap_or_default())
            }
        };
        let Some(Container { runtime, image, folders }) = &slurm.container else { return text };
        let folders: Vec<String> =
            folders.iter().map(|folder| format!(",{}", shell(&[&format!("{folder}:{folder}")]))).collect();
        let folders = format!("\"$PWD:$PWD\"{}", folders.concat());
        let image = shell(&[image]);
        text += &match runtime {
            ContainerRuntime::Pyxis => {
                format!(" --container-image={image} --container-mounts={folders} --container-workdir=\"$PWD\"")
            }
            ContainerRuntime::Apptainer => {
                let gpus = if self.gpus { " --nv" } else { "" };
                // Ranks in containers of their own may not read each other's memory.
                let memory = "--env OMPI_MCA_btl_vader_single_copy_mechanism=none";
                format!(" apptainer exec{gpus} --bind {folders} --pwd \"$PWD\" {memory} {image}")
            }
        };
        text
    }
}
