//! How many cores a rank may use.

use std::fs;

/// Threads for a rank's host work: its share of the machine's cores, at least one, and no more than the process may run
/// on. Launchers bind ranks to cores, so the share is taken of what is online, not of what this process is bound to.
pub fn host_threads(online: usize, allowed: usize, local_size: usize) -> usize {
    (online / local_size.max(1)).clamp(1, allowed.max(1))
}

/// Cores that are online on this machine.
pub fn online_cores() -> usize {
    fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .and_then(|list| count(list.trim()))
        .unwrap_or_else(available)
}

/// Cores this process may run on.
pub fn allowed_cores() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(|list| count(list.trim())).map_or_else(available, |count| count.min(online_cores()))
}

fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of cores in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let mut total = 0;
    for part in list.split(',') {
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
            [count("0"), count("0-3,8"), count("0-127"), count("x"), count("3-1")],
            [Some(1), Some(5), Some(128), None, None]
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
    fn this_machine_has_a_core() {
        assert!(online_cores() >= 1 && allowed_cores() >= 1);
    }
}
