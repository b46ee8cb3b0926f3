//! Shared memory that killed ranks have left behind.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

/// Where POSIX shared memory lies.
const SHARED_MEMORY: &str = "/dev/shm";

/// The first part of the names that Open MPI (4 and 5) and NCCL give to their segments.
const NAMES: [&str; 3] = ["vader_segment.", "sm_segment.", "nccl-"];

/// Linux's command for the signal of a lease; the libc crate lacks it.
const F_SETSIG: i32 = 10;

/// Removes this user's segments of Open MPI and NCCL that no process has open. Ranks that are killed together with their
/// launcher leave theirs, of some MiB each, until nothing fits into the shared memory of a container.
pub(crate) fn remove_unused_segments() {
    remove_unused_in(Path::new(SHARED_MEMORY));
}

fn remove_unused_in(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let named = NAMES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        let own = |meta: &Metadata| meta.file_type().is_file() && meta.uid() == geteuid().as_raw();
        if !named || !entry.metadata().is_ok_and(|meta| own(&meta)) {
            continue;
        }
        let path = entry.path();
        let unused = File::options().read(true).write(true).open(&path).is_ok_and(|file| is_open_here_alone(&file));
        if unused && std::fs::remove_file(&path).is_ok() {
            tracing::info!("removed {}, which nothing used", path.display());
        }
    }
}

/// Whether no other process has the file open or mapped, in any container of this machine. The kernel grants a lease for
/// writing only then.
fn is_open_here_alone(file: &File) -> bool {
    let lease = |kind: i32| {
        // SAFETY: the descriptor is open, and these commands take an integer.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) }
    };
    // SAFETY: as above. Should somebody open the file while the lease is held, this process gets a signal that it ignores.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) };
    let alone = lease(libc::F_WRLCK) == 0;
    if alone {
        lease(libc::F_UNLCK);
    }
    alone
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// A process that maps the file and has closed its descriptor, as Open MPI does.
    const MAPS: &str = "import mmap, sys; file = open(sys.argv[1], 'r+b'); memory = mmap.mmap(file.fileno(), 0); \
                        file.close(); print('ready', flush=True); sys.stdin.read()";

    #[test]
    fn a_segment_that_a_process_has_mapped_stays_and_goes_after_its_end() {
        let folder = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        let segment = |name: &str| {
            let path = folder.path().join(name);
            File::create(&path).unwrap().write_all(&[0; 4096]).unwrap();
            path
        };
        let [used, left, new, other] =
            ["vader_segment.node.0.1.0", "vader_segment.node.0.1.1", "nccl-AbCdEf", "of-another"].map(segment);
        let mut holder =
            Command::new("python3").args(["-c", MAPS]).arg(&used).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let holder = holder.as_mut().unwrap();
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        remove_unused_in(folder.path());
        assert_eq!([&used, &left, &new, &other].map(|path| path.exists()), [true, false, false, true]);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        remove_unused_in(folder.path());
        assert_eq!([&used, &other].map(|path| path.exists()), [false, true]);
    }
}
