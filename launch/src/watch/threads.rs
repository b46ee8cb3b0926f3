//! The threads of a process that stands still: the call that each is in, as `/proc` shows it.

use std::collections::BTreeMap;
use std::path::Path;

/// Calls that threads wait in, by number. The first argument of those with `true` is a file.
const CALLS: &[(i64, &str, bool)] = &[
    (libc::SYS_futex, "futex", false),
    (libc::SYS_ppoll, "ppoll", false),
    (libc::SYS_epoll_pwait, "epoll_pwait", false),
    (libc::SYS_pselect6, "pselect", false),
    (libc::SYS_nanosleep, "nanosleep", false),
    (libc::SYS_clock_nanosleep, "nanosleep", false),
    (libc::SYS_sched_yield, "sched_yield", false),
    (libc::SYS_wait4, "wait4", false),
    (libc::SYS_waitid, "waitid", false),
    (libc::SYS_openat, "openat", false),
    (libc::SYS_mmap, "mmap", false),
    (libc::SYS_munmap, "munmap", false),
    (libc::SYS_process_vm_readv, "process_vm_readv", false),
    (libc::SYS_read, "read", true),
    (libc::SYS_pread64, "pread", true),
    (libc::SYS_readv, "readv", true),
    (libc::SYS_write, "write", true),
    (libc::SYS_pwrite64, "pwrite", true),
    (libc::SYS_writev, "writev", true),
    (libc::SYS_fsync, "fsync", true),
    (libc::SYS_fdatasync, "fdatasync", true),
    (libc::SYS_ftruncate, "ftruncate", true),
    (libc::SYS_fallocate, "fallocate", true),
    (libc::SYS_flock, "flock", true),
    (libc::SYS_fcntl, "fcntl", true),
    (libc::SYS_ioctl, "ioctl", true),
    (libc::SYS_connect, "connect", true),
    (libc::SYS_accept, "accept", true),
    (libc::SYS_accept4, "accept", true),
    (libc::SYS_recvfrom, "recvfrom", true),
    (libc::SYS_recvmsg, "recvmsg", true),
    (libc::SYS_sendto, "sendto", true),
    (libc::SYS_sendmsg, "sendmsg", true),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pause, "pause", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "poll", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, "select", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, "epoll_wait", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "open", false),
];

/// A line about the threads of `rank`, which is a process of this machine: the call that each is in. Threads of one name in
/// one call are counted.
pub(super) fn threads_of(rank: usize, process: u32) -> String {
    let folder = Path::new("/proc").join(process.to_string());
    let tasks = std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    let mut all: BTreeMap<(bool, String), usize> = BTreeMap::new();
    for task in tasks.map(|task| task.path()) {
        // It may just have ended.
        let Some(name) = read(&task, "comm") else { continue };
        let is_main = task.ends_with(process.to_string());
        let name = if is_main { "main" } else { name.trim_end() };
        *all.entry((!is_main, format!("{name} {}", place(&folder, &task)))).or_default() += 1;
    }
    let words = all.into_iter().map(|((_, words), count)| if count > 1 { format!("{count} x {words}") } else { words });
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => format!("threads of rank {rank}: process {process} is gone"),
        false => format!("threads of rank {rank}, process {process}: {}", words.join("; ")),
    }
}

/// The place where a thread stands.
fn place(process: &Path, task: &Path) -> String {
    // The name before the state may have any characters, but ends with the last parenthesis.
    let stat = read(task, "stat").unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
    let call = read(task, "syscall").and_then(|text| call(process, &text));
    // Another process may keep its calls to itself. The kernel's function is told to more.
    let function = || read(task, "wchan").filter(|name| name != "0" && !name.is_empty());
    let at = call.or_else(|| function().map(|name| format!("in {name}")));
    match (state, at) {
        ('T' | 't', Some(at)) => format!("stopped {at}"),
        ('T' | 't', None) => "stopped".into(),
        ('R', _) => "running".into(),
        ('D', Some(at)) => format!("{at}, not to be interrupted"),
        (_, Some(at)) => at,
        ('D', None) => "waiting for a device or a disk".into(),
        _ => "waiting".into(),
    }
}

/// The call in a line of `/proc/PROCESS/task/THREAD/syscall`. `None` if the thread is in none.
fn call(process: &Path, line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let number: i64 = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let Some((_, name, of_file)) = CALLS.iter().find(|(known, ..)| *known == number) else {
        return Some(format!("in system call {number}"));
    };
    let file = || {
        let descriptor = u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
        let file = std::fs::read_link(process.join("fd").join(descriptor.to_string())).ok()?;
        Some(format!("in {name} of {}", file.display()))
    };
    of_file.then(file).flatten().or_else(|| Some(format!("in {name}")))
}

fn read(folder: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(folder.join(name)).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits until the line about a process has all of the given parts.
    fn wait_until(process: u32, parts: &[&str]) {
        let begun = Instant::now();
        loop {
            let line = threads_of(3, process);
            if parts.iter().all(|part| line.contains(part)) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{parts:?} are not in {line:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn each_thread_of_this_process_has_its_name_and_its_call() {
        let (end, wait) = channel::<()>();
        let waits = std::thread::Builder::new().name("waits".into()).spawn(move || wait.recv()).unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        let reads = std::thread::Builder::new().name("reads".into()).spawn(move || read.read(&mut [0])).unwrap();
        let parts = ["threads of rank 3, process ", "waits in futex", "reads in read of pipe:[", "main "];
        wait_until(std::process::id(), &parts);
        drop((end, write));
        let _ = (waits.join().unwrap(), reads.join().unwrap());
    }

    #[test]
    fn a_stopped_process_is_shown_and_one_that_is_gone_is_said_to_be() {
        let mut command = Command::new("cat");
        let mut other = command.stdin(Stdio::piped()).spawn().unwrap();
        let process = other.id();
        assert!(Command::new("kill").args(["-STOP", &process.to_string()]).status().unwrap().success());
        wait_until(process, &["main stopped"]);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(threads_of(3, process), format!("threads of rank 3: process {process} is gone"));
    }
}
