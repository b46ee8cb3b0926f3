//! The rank of this process, from the environment variables of the program that started it.

use common::UserError;

/// This process among the ranks of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnv {
    /// The number of this rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The number of this rank on the node, from 0.
    pub local_rank: usize,
    /// The number of ranks on this node.
    pub local_size: usize,
    /// The launcher of this process. `None` for a single process: it is a run of its own and starts no MPI.
    pub launcher: Option<Launcher>,
}

/// A program that starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's, or Intel MPI's, mpiexec.
    Hydra,
    /// Slurm's srun.
    Slurm,
}

/// The names of one launcher's variables.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

const HYDRA: Names = Names {
    launcher: Launcher::Hydra,
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};

const SLURM: Names = Names {
    launcher: Launcher::Slurm,
    rank: "SLURM_PROCID",
    size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_size: "SLURM_STEP_TASKS_PER_NODE",
};

/// The variables that torchrun sets on every rank. Some containers set the first two, but not the third.
const TORCHRUN: [&str; 3] = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];

/// Slurm's variables for the number of this node and the number of nodes.
const SLURM_NODE: [&str; 2] = ["SLURM_NODEID", "SLURM_STEP_NUM_NODES"];

/// The launcher that started this process. Several launchers may have set their variables.
///
/// mpirun and mpiexec within a Slurm allocation have precedence: Slurm's variables then describe the allocation, or the
/// daemons that mpiexec starts by srun. But srun itself can serve MPICH, and then sets `PMI_RANK` without the local
/// variables that mpiexec sets. A shell in an allocation has `SLURM_PROCID` too; only a step has a size.
fn launcher(lookup: &impl Fn(&str) -> Option<String>) -> Option<&'static Names> {
    let any = |names: &[&str]| names.iter().any(|name| lookup(name).is_some());
    if any(&[OPEN_MPI.rank, OPEN_MPI.size]) {
        Some(&OPEN_MPI)
    } else if any(&[HYDRA.local_rank, HYDRA.local_size]) {
        Some(&HYDRA)
    } else if any(&[SLURM.size]) {
        Some(&SLURM)
    } else {
        any(&[HYDRA.rank, HYDRA.size]).then_some(&HYDRA)
    }
}

impl RankEnv {
    /// The first of `ranks` ranks on this machine, for a run that no launcher has started yet.
    pub fn local(ranks: usize) -> RankEnv {
        RankEnv { rank: 0, world_size: ranks, local_rank: 0, local_size: ranks, launcher: None }
    }

    /// Whether a launcher started ranks, all on this node. A shell in a step of Slurm is no rank: it may start ranks on
    /// other nodes.
    pub fn is_one_node(&self) -> bool {
        let started = self.launcher == Some(Launcher::OpenMpi) || self.world_size > 1;
        started && self.local_size == self.world_size
    }

    /// Reads this process's environment.
    ///
    /// # Errors
    /// A variable that is missing while others of its launcher are set, that is not a number, or a rank that is not below
    /// its size; several ranks started by torchrun.
    pub fn detect() -> Result<RankEnv, UserError> {
        RankEnv::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`RankEnv::detect`], with the environment variables that `lookup` returns.
    ///
    /// # Errors
    /// As [`RankEnv::detect`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<RankEnv, UserError> {
        let Some(names) = launcher(&lookup) else {
            refuse_torchrun(&lookup)?;
            return Ok(RankEnv::local(1));
        };
        let failed = |variable: &str, problem: String| {
            UserError::new(
                format!("environment variable {variable} {problem}"),
                "a launcher sets rank, size and their local counterparts together",
                "start with trainer launch, mpirun or srun, or unset the variable",
            )
        };
        let text = |name: &str| {
            lookup(name).ok_or_else(|| failed(name, format!("is not set, but others of {:?} are", names.launcher)))
        };
        let number = |name: &str| -> Result<usize, UserError> {
            let text = text(name)?;
            text.trim().parse().map_err(|_| failed(name, format!("is `{text}`, not a number")))
        };
        let below = |variable: &str, size_variable: &str, value: usize, size: usize| match value < size {
            true => Ok(()),
            false => Err(failed(variable, format!("is {value}, which is not below {size_variable} = {size}"))),
        };
        let (rank, world_size, local_rank) = (number(names.rank)?, number(names.size)?, number(names.local_rank)?);
        let local_size = if names.launcher == Launcher::Slurm {
            let [this, all] = [number(SLURM_NODE[0])?, number(SLURM_NODE[1])?];
            below(SLURM_NODE[0], SLURM_NODE[1], this, all)?;
            let list = text(names.local_size)?;
            tasks_per_node(&list, this)
                .ok_or_else(|| failed(names.local_size, format!("is `{list}`, not like `2(x3),1` for {all} nodes")))?
        } else {
            number(names.local_size)?
        };
        below(names.rank, names.size, rank, world_size)?;
        below(names.local_rank, names.local_size, local_rank, local_size)?;
        if local_size > world_size {
            return Err(failed(names.local_size, format!("is {local_size}, more than {} = {world_size}", names.size)));
        }
        Ok(RankEnv { rank, world_size, local_rank, local_size, launcher: Some(names.launcher) })
    }
}

/// Fails if torchrun started this process as one of several ranks: each rank would train as a single process.
fn refuse_torchrun(lookup: &impl Fn(&str) -> Option<String>) -> Result<(), UserError> {
    let [Some(rank), Some(size), Some(_)] = TORCHRUN.map(lookup) else { return Ok(()) };
    if size.trim().parse::<usize>().is_ok_and(|size| size > 1) {
        return Err(UserError::new(
            format!(
                "environment variable WORLD_SIZE is {size} with RANK = {rank} and LOCAL_RANK, as torchrun sets them"
            ),
            "ranks find each other by MPI, which torchrun does not start",
            "start with trainer launch, mpirun or srun, or unset LOCAL_RANK to run a single process",
        ));
    }
    Ok(())
}

/// The number of tasks of a node. Slurm writes `2(x3),1` for three nodes with two tasks each and one node with one.
fn tasks_per_node(list: &str, node: usize) -> Option<usize> {
    let mut first: usize = 0;
    for part in list.trim().split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks.parse().ok()?, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part.parse().ok()?, 1),
        };
        first = first.saturating_add(nodes);
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
    fn ranks_on_one_node_are_known_and_a_shell_in_a_step_is_not_among_them() {
        let one_node = |pairs: &[(&str, &str)]| detect(pairs).unwrap().is_one_node();
        assert!(!one_node(&[]) && !one_node(&OPEN_MPI) && !one_node(&SLURM_STEP));
        assert!(one_node(&with(&OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "8")) && one_node(&MPICH));
        let shell = [
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "1"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_NUM_NODES", "1"),
        ];
        assert!(!one_node(&shell));
    }

    #[test]
    fn without_variables_this_is_a_single_process() {
        let env = detect(&[]).unwrap();
        assert_eq!((env.rank, env.world_size, env.local_size, env.launcher), (0, 1, 1, None));
    }

    #[test]
    fn open_mpi_is_found() {
        let env = detect(&OPEN_MPI).unwrap();
        assert_eq!((env.rank, env.world_size, env.local_rank, env.local_size), (5, 8, 1, 4));
        assert_eq!(env.launcher, Some(Launcher::OpenMpi));
    }

    const MPICH: [(&str, &str); 4] =
        [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];

    #[test]
    fn mpich_is_found() {
        let env = detect(&MPICH).unwrap();
        assert_eq!((env.rank, env.world_size, env.local_rank, env.local_size), (1, 2, 1, 2));
        assert_eq!(env.launcher, Some(Launcher::Hydra));
    }

    /// The last of seven tasks on four nodes.
    const SLURM_STEP: [(&str, &str); 6] = [
        ("SLURM_PROCID", "6"),
        ("SLURM_STEP_NUM_TASKS", "7"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
        ("SLURM_NODEID", "3"),
        ("SLURM_STEP_NUM_NODES", "4"),
    ];

    #[test]
    fn slurm_is_found_with_nodes_of_different_sizes() {
        let env = detect(&SLURM_STEP).unwrap();
        assert_eq!((env.rank, env.world_size, env.local_rank, env.local_size), (6, 7, 0, 1));
        assert_eq!(env.launcher, Some(Launcher::Slurm));
    }

    #[test]
    fn tasks_are_counted_by_node() {
        let on_node = |node| tasks_per_node("2(x3),1,4", node);
        assert_eq!([0, 2, 3, 4, 5].map(on_node), [Some(2), Some(2), Some(1), Some(4), None]);
        assert_eq!(tasks_per_node("2(x3),1(x18446744073709551615)", 5), Some(1), "more nodes than can be counted");
        assert_eq!(["", "2(x3", "2x3", "a(x2)", "2(xb)"].map(|list| tasks_per_node(list, 0)), [None; 5]);
    }

    #[test]
    fn a_shell_inside_a_slurm_allocation_is_a_single_process() {
        let shell = [("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_NODEID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(detect(&shell).unwrap(), detect(&[]).unwrap());
    }

    #[test]
    fn mpirun_and_mpiexec_inside_a_slurm_step_have_precedence() {
        let with_slurm = |pairs: &[(&'static str, &'static str)]| [&SLURM_STEP, pairs].concat();
        let env = detect(&with_slurm(&OPEN_MPI)).unwrap();
        assert_eq!(env, detect(&OPEN_MPI).unwrap());
        let env = detect(&with_slurm(&MPICH)).unwrap();
        assert_eq!(env, detect(&MPICH).unwrap());
    }

    #[test]
    fn srun_that_serves_mpich_is_slurm() {
        let served = [&SLURM_STEP[..], &[("PMI_RANK", "6"), ("PMI_SIZE", "7")]].concat();
        let env = detect(&served).unwrap();
        assert_eq!(env, detect(&SLURM_STEP).unwrap());
    }

    const TORCHRUN: [(&str, &str); 3] = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")];

    #[test]
    fn ranks_of_torchrun_are_refused_and_no_others_with_some_of_its_variables() {
        let message = detect(&TORCHRUN).unwrap_err();
        for part in [
            "WORLD_SIZE is 2 with RANK = 1",
            "torchrun",
            ". Rule: ",
            "by MPI",
            ". Fix: start with trainer launch, mpirun or srun",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let alone = detect(&[]).unwrap();
        assert_eq!(detect(&TORCHRUN[..2]).unwrap(), alone, "a container that sets no LOCAL_RANK");
        assert_eq!(detect(&with(&TORCHRUN, "WORLD_SIZE", "1")).unwrap(), alone);
        assert_eq!(detect(&with(&TORCHRUN, "WORLD_SIZE", "")).unwrap(), alone);
        assert_eq!(detect(&[&TORCHRUN[..], &OPEN_MPI].concat()).unwrap(), detect(&OPEN_MPI).unwrap());
    }

    /// `pairs` with one variable set to another value.
    fn with<'a>(pairs: &[(&'a str, &'a str)], variable: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
        let others = pairs.iter().copied().filter(|(name, _)| *name != variable);
        others.chain([(variable, value)]).collect()
    }

    #[test]
    fn any_variable_missing_beside_its_fellows_is_named_with_rule_and_fix() {
        for pairs in [&OPEN_MPI[..], &MPICH, &SLURM_STEP] {
            for (missing, _) in pairs.iter().filter(|(name, _)| *name != "SLURM_STEP_NUM_TASKS") {
                let rest: Vec<_> = pairs.iter().copied().filter(|(name, _)| name != missing).collect();
                let message = detect(&rest).unwrap_err();
                assert!(message.contains(&format!("{missing} is not set")), "{message}");
                assert!(message.contains("Rule:") && message.contains("Fix:"), "{message}");
            }
        }
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        for (pairs, variable, value, expected) in [
            (&OPEN_MPI[..], "OMPI_COMM_WORLD_RANK", "x", "OMPI_COMM_WORLD_RANK is `x`, not a number"),
            (&OPEN_MPI, "OMPI_COMM_WORLD_RANK", "", "OMPI_COMM_WORLD_RANK is ``, not a number"),
            (&OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "-8", "OMPI_COMM_WORLD_SIZE is `-8`, not a number"),
            (&OPEN_MPI, "OMPI_COMM_WORLD_RANK", "8", "RANK is 8, which is not below OMPI_COMM_WORLD_SIZE = 8"),
            (&OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "9", "LOCAL_SIZE is 9, more than OMPI_COMM_WORLD_SIZE = 8"),
            (&MPICH, "PMI_SIZE", "0", "PMI_RANK is 1, which is not below PMI_SIZE = 0"),
            (&MPICH, "MPI_LOCALRANKID", "2", "MPI_LOCALRANKID is 2, which is not below MPI_LOCALNRANKS = 2"),
            (&SLURM_STEP, "SLURM_NODEID", "4", "SLURM_NODEID is 4, which is not below SLURM_STEP_NUM_NODES = 4"),
            (&SLURM_STEP, "SLURM_STEP_TASKS_PER_NODE", "2(x3)", "is `2(x3)`, not like `2(x3),1` for 4 nodes"),
        ] {
            let message = detect(&with(pairs, variable, value)).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
