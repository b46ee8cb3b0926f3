//! Starting ranks on this machine with Open MPI's mpirun.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::UserError;
use common::terminal::{self, warn};
use rustix::process::geteuid;

use crate::child::{exit_code, listen, run_child};
use crate::leftovers::remove_leftovers;
use crate::shared_memory::check_room;
use crate::strangers::Reach;
use crate::watch::WatchSettings;

/// Open MPI's mpirun.
#[derive(Clone, Debug)]
pub struct Mpirun {
    path: PathBuf,
}

impl Mpirun {
    /// Finds mpirun on `PATH`.
    ///
    /// # Errors
    /// No mpirun, or that of another MPI: its flags differ.
    pub fn find() -> Result<Mpirun, UserError> {
        let path = find(&std::env::var_os("PATH").unwrap_or_default()).ok_or_else(|| {
            UserError::new(
                "mpirun is not on PATH",
                "Open MPI's mpirun starts the ranks",
                "install Open MPI (Debian: apt-get install openmpi-bin), or add its folder to PATH",
            )
        })?;
        if !is_open_mpi(&path) {
            return Err(UserError::new(
                format!("{} is not of Open MPI", path.display()),
                "trainer launch starts ranks by Open MPI's mpirun, because the flags of others differ",
                "put Open MPI's folder first on PATH, or start the ranks yourself: mpiexec -n RANKS trainer FLAGS",
            ));
        }
        Ok(Mpirun { path })
    }

    /// The command that runs `program` on `ranks` ranks of this machine.
    pub fn command(&self, ranks: usize, program: &Path, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(flags(ranks, is_root())).arg(program).args(arguments);
        // The ranks' lines go through mpirun's pipes to the terminal that this process sees.
        command.envs(terminal::for_ranks());
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_slurms(name)) {
            command.env_remove(name);
        }
        command
    }

    /// Makes room for the messages of `ranks` ranks: removes what dead ranks have left in shared memory.
    ///
    /// # Errors
    /// There is too little room all the same.
    pub fn make_room(ranks: usize) -> Result<(), UserError> {
        remove_leftovers();
        check_room(ranks)
    }

    /// Runs `program` on `ranks` ranks of this machine, and returns mpirun's exit code: that of the first rank that
    /// failed. SIGTERM, SIGINT and SIGUSR1 are passed on as [`supervise`](crate::supervise) does. If this process dies,
    /// mpirun ends the ranks. Everything is ended with exit code 3 and one line if mpirun goes on after all ranks have
    /// ended, if all ranks are stopped for longer than `watch` allows, or if a stranger holds up the start.
    ///
    /// # Errors
    /// mpirun cannot be started.
    pub fn run(&self, ranks: usize, program: &Path, arguments: &[OsString], watch: &WatchSettings) -> io::Result<i32> {
        let command = self.command(ranks, program, arguments);
        let ended = run_child(command, &mut listen()?, watch, Reach::ThisMachine)?;
        if let Some(trouble) = ended.trouble {
            warn(&format!("error: {trouble}. The run was ended"));
            return Ok(3);
        }
        Ok(exit_code(ended.status))
    }
}

/// mpirun's flags for ranks that share this machine.
///
/// - `--oversubscribe`: mpirun counts one slot per core, or those of a hostfile, and refuses more ranks. If the ranks
///   fit, the flag changes nothing.
/// - `--bind-to none`: mpirun would bind each of two ranks to one core. The ranks share the cores among themselves, see
///   [`host_threads`](crate::host_threads).
/// - `--allow-run-as-root`, for root only: mpirun refuses to run as root without it.
fn flags(ranks: usize, root: bool) -> Vec<String> {
    let ranks = ranks.to_string();
    let mut flags = vec!["-n", &ranks, "--oversubscribe", "--bind-to", "none"];
    if root {
        flags.push("--allow-run-as-root");
    }
    flags.into_iter().map(String::from).collect()
}

/// Slurm's variables are not passed to mpirun: within an allocation of several nodes it would spread the ranks over them.
fn is_slurms(variable: &OsStr) -> bool {
    variable.as_encoded_bytes().starts_with(b"SLURM_")
}

fn is_root() -> bool {
    geteuid().is_root()
}

/// The first mpirun in the folders of a `PATH`.
fn find(path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join("mpirun")).find(|program| program.is_file())
}

fn is_open_mpi(mpirun: &Path) -> bool {
    let version = Command::new(mpirun).arg("--version").output();
    version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("Open MPI"))
}

/// The problem of a command line that starts with mpirun and that mpirun would refuse, because the user is root and did not
/// allow that. `None` for other commands.
pub fn refused_as_root(command: &[OsString]) -> Option<UserError> {
    if !is_root() {
        return None;
    }
    let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
        .iter()
        .all(|name| std::env::var_os(name).is_some_and(|value| value == "1"));
    let program = Path::new(command.first()?);
    let lacks_flag = lacks_root_flag(command, allowed);
    if !lacks_flag || !is_open_mpi(program) {
        return None;
    }
    Some(UserError::new(
        format!("{} as root", program.display()),
        "Open MPI's mpirun refuses to run as root, unless it is told to",
        format!("{} --allow-run-as-root ...", program.display()),
    ))
}

/// Whether a command starts with mpirun and lacks the flag that root needs. `allowed`: the environment has the same meaning.
fn lacks_root_flag(command: &[OsString], allowed: bool) -> bool {
    let starts_mpirun = command
        .first()
        .and_then(|program| Path::new(program).file_name())
        .is_some_and(|name| ["mpirun", "mpiexec", "orterun"].iter().any(|known| name == *known));
    starts_mpirun && !allowed && !command.iter().any(|word| word == "--allow-run-as-root")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn ranks_share_the_cores_and_only_root_asks_to_be_root() {
        assert_eq!(flags(4, false).join(" "), "-n 4 --oversubscribe --bind-to none");
        assert_eq!(flags(16, true).join(" "), "-n 16 --oversubscribe --bind-to none --allow-run-as-root");
    }

    #[test]
    fn the_command_is_mpiruns_flags_then_the_program_and_its_own_flags() {
        let mpirun = Mpirun { path: "/opt/mpi/bin/mpirun".into() };
        let command = mpirun.command(2, Path::new("/bin/trainer"), &["--steps".into(), "5".into()]);
        let words: Vec<&OsStr> = command.get_args().collect();
        assert_eq!(command.get_program(), "/opt/mpi/bin/mpirun");
        assert_eq!(words[words.len() - 3..], ["/bin/trainer", "--steps", "5"]);
        assert_eq!(words[..2], ["-n", "2"]);
    }

    #[test]
    fn slurms_variables_stay_behind_and_no_others() {
        let kept = ["PATH", "SLURMD", "OMPI_MCA_btl", "MY_SLURM_JOB"];
        assert!(is_slurms("SLURM_JOB_ID".as_ref()) && !kept.iter().any(|name| is_slurms(name.as_ref())));
    }

    #[test]
    fn the_first_mpirun_of_the_path_is_taken_and_one_of_another_mpi_is_known_by_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, says: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            let script = path.join("mpirun");
            fs::write(&script, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
            fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let (open, hydra) = (script("open", "mpirun (Open MPI) 4.1.4"), script("hydra", "HYDRA build details:"));
        let path = std::env::join_paths([folder.path(), &*open, &*hydra]).unwrap();
        assert_eq!(find(&path), Some(open.join("mpirun")));
        assert_eq!(find(folder.path().as_os_str()), None);
        assert!(is_open_mpi(&open.join("mpirun")) && !is_open_mpi(&hydra.join("mpirun")));
        assert!(!is_open_mpi(&folder.path().join("mpirun")));
    }

    #[test]
    fn only_mpirun_without_the_flag_is_refused_as_root() {
        let lacks =
            |line: &str, allowed| lacks_root_flag(&line.split(' ').map(OsString::from).collect::<Vec<_>>(), allowed);
        assert!(lacks("mpirun -n 2 trainer", false) && lacks("/usr/bin/mpiexec -n 2 trainer", false));
        for (line, allowed) in [
            ("mpirun -n 2 trainer", true),
            ("mpirun --allow-run-as-root -n 2 trainer", false),
            ("trainer --steps 5", false),
            ("srun -n 2 trainer", false),
        ] {
            assert!(!lacks(line, allowed), "{line}");
        }
    }
}
