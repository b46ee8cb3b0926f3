//! The library that calls MPI: found beside the trainer, and loaded once.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use common::UserError;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::abi::{Table, Text};

/// The library's only symbol, a function that returns the table. The number changes when `abi.rs` does.
const SYMBOL: &str = "trainer_mpi_2";

/// The libraries' files: that of the MPI whose compiler was the first on `PATH` at the build, and that of MPICH, if
/// `./x release` found it beside another. Under MPICH's launcher its own comes first.
fn files() -> [&'static str; 2] {
    let set = |name| std::env::var_os(name).is_some();
    match set("PMI_RANK") && !set("OMPI_COMM_WORLD_RANK") {
        true => ["libtrainer_mpich.so", "libtrainer_mpi.so"],
        false => ["libtrainer_mpi.so", "libtrainer_mpich.so"],
    }
}

/// The folders that are searched: Cargo's for dependencies (the newest build), the program's own, and `lib` next to
/// that.
fn folders(program: &Path) -> Vec<PathBuf> {
    let Some(own) = program.parent() else { return Vec::new() };
    let next = own.parent().map(|above| above.join("lib"));
    [own.join("deps"), own.into()].into_iter().chain(next).collect()
}

/// The name and version of the MPI that ranks will use.
///
/// # Errors
/// The library or its MPI is missing.
pub fn mpi_version() -> Result<String, UserError> {
    // SAFETY: `text` gives a valid place. MPI may be asked at any time.
    table().map(|table| text(|to| unsafe { (table.version)(to) }))
}

/// The text that `write` writes.
pub(super) fn text(write: impl FnOnce(Text) -> usize) -> String {
    let mut bytes = vec![0; 8192];
    let length = write(Text { bytes: bytes.as_mut_ptr(), capacity: bytes.len() });
    String::from_utf8_lossy(&bytes[..length]).trim().into()
}

/// MPI's functions.
///
/// # Errors
/// The library or its MPI is missing.
pub(super) fn table() -> Result<&'static Table, UserError> {
    static LOADED: OnceLock<Result<&'static Table, UserError>> = OnceLock::new();
    LOADED.get_or_init(|| find(&std::env::current_exe().unwrap_or_default())).clone()
}

/// Loads the first library that can be loaded.
fn find(program: &Path) -> Result<&'static Table, UserError> {
    let folders = folders(program);
    let there = files().into_iter().flat_map(|file| folders.iter().map(move |folder| folder.join(file)));
    let mut refused = None;
    for path in there.filter(|path| path.is_file()) {
        match load(&path) {
            Ok(table) => return Ok(table),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let searched: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        UserError::new(
            format!("{} is in none of {}", files()[0], searched.join(", ")),
            "several ranks need MPI, and the trainer calls it through this library of its own",
            "put it beside the trainer, as `./x release` does; `cargo build --release -p trainer-mpi` makes it \
             (with Debian's libopenmpi-dev and libclang-dev, or RHEL's openmpi-devel and clang-devel)",
        )
    }))
}

fn load(path: &Path) -> Result<&'static Table, UserError> {
    // SAFETY: the trainer's own library and MPI, whose initializers do nothing of note. MPI loads parts of itself
    // later, and these may look for its symbols among the global ones.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
        UserError::new(
            format!("{} cannot be loaded: {}", path.display(), reason(&error)),
            "several ranks need the MPI that this library was built with",
            "install it (Open MPI is Debian's openmpi-bin; RHEL's openmpi, then `module load mpi`), or put the folder \
             of its libmpi.so on LD_LIBRARY_PATH",
        )
    })?;
    // SAFETY: the symbol is a function of this type in every library that has it.
    let table = unsafe { library.get::<unsafe extern "C" fn() -> *const Table>(SYMBOL).map(|entry| entry()) };
    // MPI is not made to be unloaded.
    std::mem::forget(library);
    // SAFETY: the table is a static of the library, which stays loaded.
    table.map(|table| unsafe { &*table }).map_err(|_| {
        UserError::new(
            format!("{} has no {SYMBOL}", path.display()),
            "the trainer and its library for MPI are of one version",
            "install both from the same build (cargo build --release -p tools -p trainer-mpi)",
        )
    })
}

/// The loader's own words.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_library_that_is_missing_damaged_or_of_another_version_is_named_with_a_fix() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib"));
        [&bin, &lib].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let told = || find(&bin.join("trainer")).map(|_| ()).unwrap_err().to_string();
        let (own, next) = (bin.display(), lib.display());
        let missing = format!("libtrainer_mpi.so is in none of {own}/deps, {own}, {next}. Rule: ");
        assert!(told().starts_with(&missing) && told().contains("libopenmpi-dev"), "{}", told());

        fs::write(lib.join("libtrainer_mpi.so"), "").unwrap();
        let damaged = format!("{next}/libtrainer_mpi.so cannot be loaded: {next}/libtrainer_mpi.so: file too short");
        assert!(told().starts_with(&damaged) && told().contains("openmpi-bin"), "{}", told());

        // A library without the symbol, found before the damaged one.
        std::os::unix::fs::symlink("/lib/x86_64-linux-gnu/libm.so.6", bin.join("libtrainer_mpi.so")).unwrap();
        let old = format!("{own}/libtrainer_mpi.so has no trainer_mpi_2. Rule: ");
        assert!(told().starts_with(&old), "{}", told());
    }

    #[test]
    fn the_version_is_known_before_mpi_starts() {
        assert!(!mpi_version().unwrap().is_empty());
    }
}
