//! The number of cores that a rank may use, and whether the launcher bound the rank to too few.

use std::fs;

use crate::{Launcher, RankEnv};

/// The number of threads for a rank's host work: its share of the machine's `online` cores, at least one, and at most the
/// `allowed` cores that the process may run on. The share is of the online cores, because launchers bind each rank to some.
pub fn host_threads(online: usize, allowed: usize, local_size: usize) -> usize {
    (online / local_size.max(1)).clamp(1, allowed.max(1))
}

/// The number of cores that the ranks of this machine share: the online ones, or fewer if a container limits CPU time.
pub fn online_cores() -> usize {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    shared_cores(count(&read("/sys/devices/system/cpu/online")), bound_cores("self"), allowed_cores())
}

/// The number of cores that a process is bound to. `process` is its number, or `self`.
fn bound_cores(process: &str) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(count)
}

/// A notice if mpirun bound this rank to fewer cores than the rank's share of mpirun's own cores, as happens with up to
/// two ranks unless mpirun is told otherwise. `None` if the user chose the binding.
pub fn binding_notice(env: &RankEnv) -> Option<String> {
    let by_mpirun = matches!(env.launcher, Some(Launcher::OpenMpi | Launcher::Hydra));
    // Open MPI passes its option `--bind-to` on to the ranks in this variable.
    if !by_mpirun || std::env::var_os("OMPI_MCA_hwloc_base_binding_policy").is_some() {
        return None;
    }
    let launcher = std::os::unix::process::parent_id().to_string();
    let (bound, all) = (bound_cores("self")?, bound_cores(&launcher)?);
    binds_too_tightly(bound, all, env.local_size).then(|| {
        format!(
            "mpirun bound each rank to {bound} of this machine's {all} cores, fewer than a rank's share. Fix: mpirun --bind-to \
             none, or trainer launch -n {}",
            env.local_size
        )
    })
}

/// Whether ranks that are bound to `bound` cores each leave some of all `cores` unused.
fn binds_too_tightly(bound: usize, cores: usize, ranks: usize) -> bool {
    bound < cores / ranks.max(1)
}

/// The number of cores that this process may run on: those it is bound to, or fewer if a container limits CPU time.
pub fn allowed_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// If a process may use fewer cores than it is bound to, its CPU time is limited, and all its ranks share that limit.
fn shared_cores(online: Option<usize>, bound: Option<usize>, allowed: usize) -> usize {
    match (online, bound) {
        (Some(online), Some(bound)) if bound.min(online) <= allowed => online,
        _ => allowed,
    }
}

/// The number of cores in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let mut total = 0;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        total += last.checked_sub(first)? + 1;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists_are_counted() {
        assert_eq!(
            [count("0"), count("\t0-3,8\n"), count("0-127"), count("x"), count("3-1"), count("")],
            [Some(1), Some(5), Some(128), None, None, None]
        );
    }

    #[test]
    fn a_rank_gets_its_share_of_the_machine_but_no_more_than_it_may_use() {
        assert_eq!(host_threads(16, 16, 1), 16);
        assert_eq!(host_threads(16, 16, 4), 4);
        assert_eq!(host_threads(16, 1, 4), 1, "bound to one core");
        assert_eq!(host_threads(2, 2, 8), 1, "oversubscribed");
    }

    #[test]
    fn ranks_share_what_is_online_unless_a_container_allows_less() {
        assert_eq!(shared_cores(Some(64), Some(64), 64), 64);
        assert_eq!(shared_cores(Some(64), Some(1), 1), 64, "bound to one core by mpirun");
        assert_eq!(shared_cores(Some(64), Some(64), 4), 4, "four cores' worth of CPU time");
        assert_eq!(shared_cores(Some(64), Some(128), 64), 64, "a mask may name cores that do not exist");
        assert_eq!(shared_cores(None, Some(64), 8), 8, "no list of cores to read");
    }

    #[test]
    fn a_rank_bound_to_less_than_its_share_is_bound_too_tightly() {
        assert!(binds_too_tightly(1, 16, 2) && binds_too_tightly(1, 3, 1));
        assert!(!binds_too_tightly(1, 2, 2), "a core each");
        assert!(!binds_too_tightly(32, 64, 4), "a socket each for two ranks");
        assert!(!binds_too_tightly(1, 2, 8), "oversubscribed");
    }

    #[test]
    fn this_machine_has_at_least_the_cores_this_process_may_use() {
        assert!(allowed_cores() >= 1 && online_cores() >= allowed_cores());
    }
}
