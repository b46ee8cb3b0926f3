//! How many cores a rank may use.

use std::fs;

/// Threads for a rank's host work: its share of the machine's cores, at least one, and no more than the process may run
/// on. Launchers bind ranks to cores, so the share is taken of what is online, not of what this process is bound to.
pub fn host_threads(online: usize, allowed: usize, local_size: usize) -> usize {
    (online / local_size.max(1)).clamp(1, allowed.max(1))
}

/// Cores of this machine that its ranks share: those online, or fewer where a container limits its CPU time.
pub fn online_cores() -> usize {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let bound = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    shared_cores(count(&read("/sys/devices/system/cpu/online")), bound.and_then(count), allowed_cores())
}

/// Cores this process may run on: those it is bound to, or fewer where a container limits its CPU time.
pub fn allowed_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A process allowed fewer cores than it is bound to has a limit on CPU time, which its fellow ranks share.
fn shared_cores(online: Option<usize>, bound: Option<usize>, allowed: usize) -> usize {
    match (online, bound) {
        (Some(online), Some(bound)) if bound.min(online) <= allowed => online,
        _ => allowed,
    }
}

/// Number of cores in a list like `0-3,8`.
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
    fn this_machine_has_at_least_the_cores_this_process_may_use() {
        assert!(allowed_cores() >= 1 && online_cores() >= allowed_cores());
    }
}
