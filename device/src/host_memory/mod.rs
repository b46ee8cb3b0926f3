//! Memory of the host device.

mod array;
mod block;

use std::path::Path;

pub(crate) use array::{ArrayColumns, BorrowedMemory};
pub use array::{Growth, HostArray, HostValues, Staging};
pub(crate) use block::HostBlock;

/// Blocks of up to this many bytes are allocated without checking how much memory is free.
const SMALL: usize = 1 << 20;

/// Bytes that this process can still allocate, by the system's own estimates. `None` if it gives none.
pub fn available_memory() -> Option<usize> {
    free_of_machine().into_iter().chain(free_of_group()).min()
}

fn free_of_machine() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Bytes that the limits of this process's control groups leave, a container's among them. The kernel kills a process
/// beyond them, however much memory the machine has. Cached files do not count: the kernel drops them when memory is
/// short.
fn free_of_group() -> Option<usize> {
    let free_in = |folder: &str, [most, used, cached]: [&str; 3]| -> Option<usize> {
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let stat = read("memory.stat").unwrap_or_default();
        let cached = stat.lines().find_map(|line| number(line.strip_prefix(cached)?)).unwrap_or(0);
        let used = number(&read(used)?)?.saturating_sub(cached);
        Some(number(&read(most)?)?.saturating_sub(used)) // a group without a limit has no number
    };
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let free = groups.lines().flat_map(|line| {
        let (controllers, path) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':')).unwrap_or_default();
        let (root, files) = match controllers {
            "" => ("/sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file "]),
            _ => ("/sys/fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "]),
        };
        let counts = ["", "memory"].iter().any(|name| controllers.split(',').any(|controller| controller == *name));
        // The limits of the groups above apply too. In a container the path may be the one seen from outside; the top
        // folder is then the container's own group.
        let folders = Path::new(path).ancestors().filter(move |_| counts);
        folders.filter_map(move |path| free_in(&format!("{root}{}", path.display()), files)).collect::<Vec<_>>()
    });
    free.min()
}

/// 64 bytes: the alignment of every buffer.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// A zeroed block of host memory at a fixed address.
pub(crate) struct HostMemory {
    lines: Vec<Line>,
}

impl HostMemory {
    /// `None` if the system has less. It would promise the memory all the same, and kill the process when it is used.
    pub(crate) fn new(bytes: usize) -> Option<HostMemory> {
        if bytes > SMALL && available_memory().is_some_and(|free| bytes > free) {
            return None;
        }
        let count = bytes.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, Line([0; 64]));
        Some(HostMemory { lines })
    }

    /// The address; it stays the same for as long as the block lives, and kernels may write through it.
    pub(crate) fn address(&mut self) -> u64 {
        self.lines.as_mut_ptr().expose_provenance() as u64
    }
}
