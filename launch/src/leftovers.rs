//! Shared memory and session folders that killed ranks, launchers and supervisors have left behind.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::host_name;
use rustix::process::geteuid;

use crate::shared_memory::SHARED_MEMORY;
use crate::state_folder::remove_if_dead;

/// The first part of the names of segments of Open MPI (4 and 5) and NCCL.
const NAMES: [&str; 3] = ["vader_segment.", "sm_segment.", "nccl-"];

/// Linux's command for the signal of a lease, which the libc crate lacks.
const F_SETSIG: i32 = 10;

/// Removes this user's segments of Open MPI and NCCL that no process has open, and Open MPI's session folders whose
/// mpirun is gone. Ranks that are killed together with their launcher leave theirs, of some MiB each, until nothing fits
/// into the shared memory of a container. A killed supervisor leaves the state of its run.
pub(crate) fn remove_leftovers() {
    remove_unused_in(Path::new(SHARED_MEMORY));
    for (_, path) in own_entries(Path::new(SHARED_MEMORY), Metadata::is_dir) {
        if remove_if_dead(&path) {
            tracing::info!("removed {}, whose supervisor is dead", path.display());
        }
    }
    remove_dead_sessions(&std::env::temp_dir(), &host_name());
}

fn remove_unused_in(folder: &Path) {
    for (name, path) in own_entries(folder, Metadata::is_file) {
        let named = NAMES.iter().any(|prefix| name.starts_with(prefix));
        if named && is_unused(&path) && std::fs::remove_file(&path).is_ok() {
            tracing::info!("removed {}, which nothing used", path.display());
        }
    }
}

/// Removes `ompi.HOST.USER/pid.N`, the folder of the mpirun that was process N. While mpirun or a rank lives, it has
/// files of the folder mapped. Before the first file is there, only process N tells that mpirun lives.
fn remove_dead_sessions(temporary: &Path, host: &str) {
    let of_user = |host: &str| temporary.join(format!("ompi.{host}.{}", geteuid().as_raw()));
    // Open MPI leaves out the domain, unless it is told otherwise.
    let short = host.split('.').next().unwrap_or(host);
    let mut folders = vec![of_user(host), of_user(short)];
    folders.dedup();
    for (name, path) in folders.iter().flat_map(|folder| own_entries(folder, Metadata::is_dir)) {
        let process = name.strip_prefix("pid.").and_then(|process| process.parse::<u32>().ok());
        let is_gone = process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists());
        if !is_gone {
            continue;
        }
        let files = own_files_below(&path);
        let has_segment = files.iter().any(|(name, _)| name.starts_with("smseg-"));
        let unused = has_segment && files.iter().all(|(_, path)| is_unused(path));
        if unused && std::fs::remove_dir_all(&path).is_ok() {
            tracing::info!("removed {}, whose mpirun is gone", path.display());
        }
    }
}

/// This user's entries of a folder, by name. Links are not followed.
fn own_entries(folder: &Path, is_kind: fn(&Metadata) -> bool) -> Vec<(String, PathBuf)> {
    let is_own = |path: &Path| {
        std::fs::symlink_metadata(path).is_ok_and(|found| is_kind(&found) && found.uid() == geteuid().as_raw())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.filter(|(_, path)| is_own(path)).collect()
}

/// This user's regular files in a folder and in inner folders.
fn own_files_below(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut files = own_entries(folder, Metadata::is_file);
    files.extend(own_entries(folder, Metadata::is_dir).iter().flat_map(|(_, inner)| own_files_below(inner)));
    files
}

/// Whether no process has the file open or mapped.
fn is_unused(path: &Path) -> bool {
    File::options().read(true).write(true).open(path).is_ok_and(|file| is_open_here_alone(&file))
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

    /// A process that maps the file and has closed the file's descriptor, as Open MPI does.
    const MAPS: &str = "import mmap, sys; file = open(sys.argv[1], 'r+b'); memory = mmap.mmap(file.fileno(), 0); \
                        file.close(); print('ready', flush=True); sys.stdin.read()";

    /// A process that maps the file until the process's standard input is closed.
    fn holder_of(path: &Path) -> std::process::Child {
        let mut command = Command::new("python3");
        let command = command.args(["-c", MAPS]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        holder
    }

    #[test]
    fn a_session_folder_goes_once_its_mpirun_is_gone_and_nothing_of_it_is_in_use() {
        let temporary = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        let folder = |host: &str| temporary.path().join(format!("ompi.{host}.{}", geteuid().as_raw()));
        let session = |host: &str, process: u32, file: &str| {
            let session = folder(host).join(format!("pid.{process}"));
            let path = session.join("pmix_dstor").join(file);
            std::fs::create_dir_all(session.join("0/0")).unwrap();
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, [0; 4096]).unwrap();
            (session, path)
        };
        // No process has a number above 2^22.
        let gone = 1 << 23;
        let (dead, _) = session("node", gone, "smseg-1-0");
        let (used, segment) = session("node", gone + 1, "smseg-2-0");
        let (alive, _) = session("node", std::process::id(), "smseg-3-0");
        let (begun, _) = session("node", gone + 2, "contact.txt");
        let (elsewhere, _) = session("other", gone, "smseg-4-0");
        let (whole_name, _) = session("node.domain", gone, "smseg-5-0");
        let mut holder = holder_of(&segment);
        let there = || [&dead, &used, &alive, &begun, &elsewhere, &whole_name].map(|session| session.exists());
        remove_dead_sessions(temporary.path(), "node");
        assert_eq!(there(), [false, true, true, true, true, true]);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        remove_dead_sessions(temporary.path(), "node.domain");
        assert_eq!(there(), [false, false, true, true, true, false]);
    }

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
        let mut holder = holder_of(&used);
        remove_unused_in(folder.path());
        assert_eq!([&used, &left, &new, &other].map(|path| path.exists()), [true, false, false, true]);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        remove_unused_in(folder.path());
        assert_eq!([&used, &other].map(|path| path.exists()), [false, true]);
    }
}
