//! Launchers tell a process its place in environment variables; each has its own.

/// A process's place among the ranks of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnv {
    /// Number in the world.
    pub rank: usize,
    /// Ranks in all.
    pub world_size: usize,
    /// Number on this node.
    pub local_rank: usize,
    /// Ranks on this node.
    pub local_size: usize,
    /// Number of this node, where the launcher tells it.
    pub node: Option<usize>,
    /// Who started the process.
    pub launcher: Launcher,
}

/// What starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's, or Intel MPI's, mpiexec.
    Hydra,
    /// Slurm's srun.
    Slurm,
    /// Nothing: a process alone.
    Single,
}

/// A launcher's variables that make no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    variable: String,
    problem: String,
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "environment variable {} {}. Rule: a launcher sets rank, size and their local counterparts together. \
             Fix: start with mpirun or srun, or unset the variable",
            self.variable, self.problem
        )
    }
}

impl std::error::Error for LaunchError {}

/// The names one launcher uses.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    node: &'static str,
}

/// In order of trust: mpirun inside a Slurm allocation sets its own variables beside Slurm's, which then describe the
/// allocation and not the ranks.
const KNOWN: [Names; 3] = [
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        node: "OMPI_COMM_WORLD_NODE_RANK",
    },
    Names {
        launcher: Launcher::Hydra,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        node: "",
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
        node: "SLURM_NODEID",
    },
];

impl RankEnv {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// A variable that is missing beside its fellows, is not a number, or a rank that is not below its size.
    pub fn detect() -> Result<RankEnv, LaunchError> {
        RankEnv::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`RankEnv::detect`], from any environment.
    ///
    /// # Errors
    /// As [`RankEnv::detect`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<RankEnv, LaunchError> {
        // Inside an salloc shell Slurm has set SLURM_PROCID=0 without a step: srun alone sets the step's size.
        let set = |names: &&Names| match names.launcher {
            Launcher::Slurm => lookup(names.size).is_some() && lookup(names.rank).is_some(),
            _ => lookup(names.rank).is_some(),
        };
        let Some(names) = KNOWN.iter().find(set) else {
            let alone = Launcher::Single;
            return Ok(RankEnv { rank: 0, world_size: 1, local_rank: 0, local_size: 1, node: None, launcher: alone });
        };
        let failed = |variable: &str, problem: String| LaunchError { variable: variable.into(), problem };
        let number = |name: &str| -> Result<usize, LaunchError> {
            let text = lookup(name).ok_or_else(|| failed(name, format!("is not set, but {} is", names.rank)))?;
            text.trim().parse().map_err(|_| failed(name, format!("is `{text}`, not a number")))
        };
        let (rank, world_size) = (number(names.rank)?, number(names.size)?);
        let local_rank = number(names.local_rank)?;
        let node = if names.node.is_empty() { None } else { number(names.node).ok() };
        let local_size = match names.launcher {
            Launcher::Slurm => {
                let text = lookup(names.local_size)
                    .ok_or_else(|| failed(names.local_size, format!("is not set, but {} is", names.rank)))?;
                tasks_per_node(&text, node.unwrap_or(0))
                    .ok_or_else(|| failed(names.local_size, format!("is `{text}`, not like `2(x3),1`")))?
            }
            _ => number(names.local_size)?,
        };
        for (variable, value, size) in [(names.rank, rank, world_size), (names.local_rank, local_rank, local_size)] {
            if value >= size {
                return Err(failed(variable, format!("is {value}, which is not below the size {size}")));
            }
        }
        // Open MPI's node rank is the rank's number on its node, not the node's.
        let node = node.filter(|_| names.launcher == Launcher::Slurm);
        Ok(RankEnv { rank, world_size, local_rank, local_size, node, launcher: names.launcher })
    }
}

/// Tasks of a node, from Slurm's `2(x3),1`: three nodes with two tasks, then one with one.
fn tasks_per_node(list: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for part in list.trim().split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks.parse().ok()?, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part.parse().ok()?, 1),
        };
        first += nodes;
        if node < first {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(pairs: &[(&str, &str)]) -> Result<RankEnv, String> {
        let lookup = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        RankEnv::from_lookup(lookup).map_err(|error| error.to_string())
    }

    const OPEN_MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];

    #[test]
    fn nothing_set_is_a_process_alone() {
        let env = detect(&[]).unwrap();
        assert_eq!((env.rank, env.world_size, env.local_size, env.launcher), (0, 1, 1, Launcher::Single));
    }

    #[test]
    fn open_mpi_is_found() {
        let env = detect(&OPEN_MPI).unwrap();
        assert_eq!((env.rank, env.world_size, env.local_rank, env.local_size), (5, 8, 1, 4));
        assert_eq!(env.launcher, Launcher::OpenMpi);
    }

    #[test]
    fn mpich_is_found() {
        let pairs = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        let env = detect(&pairs).unwrap();
        assert_eq!((env.rank, env.world_size, env.launcher), (1, 2, Launcher::Hydra));
    }

    #[test]
    fn slurm_is_found_with_nodes_of_different_sizes() {
        let pairs = [
            ("SLURM_PROCID", "6"),
            ("SLURM_STEP_NUM_TASKS", "7"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
            ("SLURM_NODEID", "3"),
        ];
        let env = detect(&pairs).unwrap();
        assert_eq!((env.rank, env.local_size, env.node, env.launcher), (6, 1, Some(3), Launcher::Slurm));
    }

    #[test]
    fn a_shell_inside_a_slurm_allocation_is_a_process_alone() {
        assert_eq!(detect(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).unwrap().launcher, Launcher::Single);
    }

    #[test]
    fn mpirun_inside_a_slurm_allocation_is_open_mpi() {
        let mut pairs = vec![("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        pairs.extend(OPEN_MPI);
        assert_eq!(detect(&pairs).unwrap().launcher, Launcher::OpenMpi);
    }

    #[test]
    fn bad_variables_are_named_with_rule_and_fix() {
        let cases: [(&[(&str, &str)], &str); 3] = [
            (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE is not set"),
            (&[("PMI_RANK", "x")], "PMI_RANK is `x`, not a number"),
            (
                &[("PMI_RANK", "2"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")],
                "PMI_RANK is 2, which is not below the size 2",
            ),
        ];
        for (pairs, expected) in cases {
            let message = detect(pairs).unwrap_err();
            assert!(message.contains(expected) && message.contains("Rule:") && message.contains("Fix:"), "{message}");
        }
    }
}
