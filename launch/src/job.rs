//! Job files: how a cluster starts a run under the supervisor.

use serde_json::json;

/// A run on a cluster.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job's name.
    pub name: String,
    /// The number of machines.
    pub nodes: usize,
    /// The number of ranks on each machine.
    pub ranks_per_node: usize,
    /// Whether each rank has a GPU.
    pub gpus: bool,
    /// The trainer's path on every machine.
    pub trainer: String,
    /// The trainer's flags.
    pub flags: Vec<String>,
    /// The limit of restarts without progress, see [`supervise`](crate::supervise).
    pub max_restarts: usize,
    /// Seconds between the request to end and the end of the job: enough for a step and a checkpoint.
    pub notice_seconds: usize,
}

/// The program that starts the ranks of a Slurm job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// Open MPI's mpirun, which gets the nodes from Slurm.
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
    /// The program that starts the ranks.
    pub starter: Starter,
}

impl Job {
    /// A script for sbatch.
    pub fn slurm(&self, slurm: &Slurm) -> String {
        let mut options = Vec::new();
        if self.gpus {
            options.push(format!("--gpus-per-node={}", self.ranks_per_node));
        }
        options.extend(slurm.partition.iter().map(|partition| format!("--partition={partition}")));
        options.extend(slurm.account.iter().map(|account| format!("--account={account}")));
        options.push(format!("--time={}", slurm.time));
        let options: Vec<String> = options.iter().map(|option| format!("#SBATCH {option}")).collect();
        let ranks = self.ranks().to_string();
        let supervisor = match slurm.starter {
            Starter::Mpirun => self.supervised(&["mpirun", "-n", &ranks, "--bind-to", "none"]),
            Starter::Srun => self.supervised(&["srun", "--mpi=pmix", "--cpu-bind=none"]),
        };
        let supervisor = shell(&supervisor);
        self.fill(
            include_str!("../templates/slurm.sh"),
            &[("options", &options.join("\n")), ("supervisor", &supervisor)],
        )
    }

    /// A script for machines without a queue. The first of them runs it.
    pub fn hosts(&self, hosts: &[String]) -> String {
        let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{}", self.ranks_per_node)).collect();
        let supervisor = shell(&self.supervised(&[
            "mpirun",
            "--host",
            &slots.join(","),
            "-n",
            &self.ranks().to_string(),
            "--bind-to",
            "none",
        ]));
        self.fill(include_str!("../templates/hosts.sh"), &[("supervisor", &supervisor)])
    }

    /// A manifest for Kubernetes with Kubeflow's MPI operator. All containers run `image`, and mount the storage of `claim` at
    /// `mount`.
    pub fn kubernetes(&self, image: &str, claim: &str, mount: &str) -> String {
        let ranks = self.ranks().to_string();
        let starter = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", &ranks];
        let limits = if self.gpus { json!({ "nvidia.com/gpu": self.ranks_per_node }) } else { json!({}) };
        // JSON is valid YAML.
        let values = [
            ("limits", limits.to_string()),
            ("image", json!(image).to_string()),
            ("claim", json!(claim).to_string()),
            ("mount", json!(mount).to_string()),
            ("supervisor", json!(self.supervised(&starter)).to_string()),
        ];
        self.fill(
            include_str!("../templates/mpijob.yaml"),
            &values.each_ref().map(|(name, value)| (*name, value.as_str())),
        )
    }

    /// The number of ranks.
    fn ranks(&self) -> usize {
        self.nodes * self.ranks_per_node
    }

    /// The command line of the supervisor, which starts the ranks by `starter`.
    fn supervised(&self, starter: &[&str]) -> Vec<String> {
        let restarts = self.max_restarts.to_string();
        let supervisor = [&self.trainer, "supervise", "--max-restarts", &restarts, "--"].map(String::from);
        let starter = starter.iter().map(|word| word.to_string());
        supervisor.into_iter().chain(starter).chain([self.trainer.clone()]).chain(self.flags.iter().cloned()).collect()
    }

    /// A template with its `{names}` replaced.
    fn fill(&self, template: &str, values: &[(&str, &str)]) -> String {
        let (nodes, ranks) = (self.nodes.to_string(), self.ranks_per_node.to_string());
        let notice = self.notice_seconds.to_string();
        let own = [("name", self.name.as_str()), ("nodes", &nodes), ("ranks", &ranks), ("notice", &notice)];
        // The command line comes last, so that names in it are not replaced.
        let all = own.iter().chain(values);
        all.fold(template.to_string(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }
}

/// The words as a shell command line.
fn shell(words: &[String]) -> String {
    let quoted =
        words.iter().map(|word| shlex::try_quote(word).map_or_else(|_| word.clone(), |word| word.into_owned()));
    quoted.collect::<Vec<_>>().join(" ")
}
