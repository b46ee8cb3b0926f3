//! Job files: how a cluster starts a run under the supervisor.

mod slurm;

use serde_json::json;

pub use slurm::{Container, ContainerRuntime, Slurm, Starter};

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

impl Job {
    /// A script for machines without a queue. The first of them runs it. Before the supervisor it runs the lines `setup`, each
    /// a complete command.
    pub fn hosts(&self, hosts: &[String], setup: &[String]) -> String {
        let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{}", self.ranks_per_node)).collect();
        let starter = ["mpirun", "--host", &slots.join(","), "-n", &self.ranks().to_string(), "--bind-to", "none"];
        let starter = format!("{}{}", shell(&starter), exported(setup));
        self.script(include_str!("../../templates/hosts.sh"), &starter, &self.trainer, setup, &[])
    }

    /// A manifest for Kubernetes with Kubeflow's MPI operator. All containers run `image`, and mount the storage of
    /// `claim` at `mount`. The run starts in this folder.
    pub fn kubernetes(&self, image: &str, claim: &str, mount: &str) -> String {
        let ranks = self.ranks().to_string();
        let starter = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", &ranks].map(String::from);
        let ranks = [String::from("trainer")].into_iter().chain(self.flags.iter().cloned());
        let command: Vec<String> = self.supervisor("trainer").into_iter().chain(starter).chain(ranks).collect();
        let limits = if self.gpus { json!({ "nvidia.com/gpu": self.ranks_per_node }) } else { json!({}) };
        // JSON is valid YAML.
        let own = [limits, json!(image), json!(claim), json!(mount), json!(command)].map(|value| value.to_string());
        let [limits, image, claim, mount, command] = &own;
        let values =
            [("limits", limits), ("image", image), ("claim", claim), ("mount", mount), ("supervisor", command)];
        self.fill(include_str!("../../templates/mpijob.yaml"), &values.map(|(name, value)| (name, value.as_str())))
    }

    /// The number of ranks.
    fn ranks(&self) -> usize {
        self.nodes * self.ranks_per_node
    }

    /// The supervisor's words, up to the command that the supervisor runs.
    fn supervisor(&self, trainer: &str) -> Vec<String> {
        let restarts = self.max_restarts.to_string();
        [trainer, "supervise", "--max-restarts", &restarts, "--"].map(String::from).to_vec()
    }

    /// A shell script. `starter` is the shell's text that starts the ranks, and `trainer` the program that they run.
    fn script(
        &self,
        template: &str,
        starter: &str,
        trainer: &str,
        setup: &[String],
        values: &[(&str, &str)],
    ) -> String {
        let ranks: Vec<&str> = [trainer].into_iter().chain(self.flags.iter().map(String::as_str)).collect();
        let supervisor = format!("{} {starter} {}", shell(&self.supervisor(&self.trainer)), shell(&ranks));
        let setup = match setup {
            [] => String::new(),
            lines => fill(include_str!("../../templates/setup.sh"), &[("lines", &lines.join("\n"))]),
        };
        self.fill(template, &[values, &[("supervisor", &supervisor), ("setup", &setup)]].concat())
    }

    /// A template with the `{names}` replaced.
    fn fill(&self, template: &str, values: &[(&str, &str)]) -> String {
        let (nodes, ranks) = (self.nodes.to_string(), self.ranks_per_node.to_string());
        let notice = self.notice_seconds.to_string();
        let own: [(&str, &str); 4] = [("name", &self.name), ("nodes", &nodes), ("ranks", &ranks), ("notice", &notice)];
        fill(template, &[&own, values].concat())
    }
}

/// mpirun's flags for the variables that set-up lines have set, see `templates/setup.sh`. The ranks of other nodes get no
/// others.
fn exported(setup: &[String]) -> &'static str {
    if setup.is_empty() { "" } else { " \"${exported[@]}\"" }
}

/// A template with the `{names}` replaced. The replacing text is not searched again, so it may hold braces.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, from)) = rest.split_once('{') {
        text.push_str(before);
        let named = values.iter().find_map(|(name, value)| Some((value, from.strip_prefix(name)?.strip_prefix('}')?)));
        rest = match named {
            Some((value, after)) => {
                text.push_str(value);
                after
            }
            None => {
                text.push('{');
                from
            }
        };
    }
    text + rest
}

/// The words as a shell command line.
fn shell(words: &[impl AsRef<str>]) -> String {
    let words = words.iter().map(AsRef::as_ref);
    // Only a NUL cannot be quoted, and no argument of a process has one.
    let quoted = words.map(|word| shlex::try_quote(word).map_or_else(|_| word.to_string(), |word| word.into_owned()));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_once_and_other_braces_stay() {
        let values = [("name", "{flags}"), ("flags", "{name}")];
        assert_eq!(fill("a {name}, {flags}; ${name[@]} {x} {", &values), "a {flags}, {name}; ${name[@]} {x} {");
    }

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        assert_eq!(shell(&["a", "b c", "$d", ""]), "a 'b c' '$d' ''");
    }
}
