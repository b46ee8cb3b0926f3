//! NVIDIA's libraries in Python packages, next to a trainer that is in one itself.

#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use libloading::Library;

/// Makes the loader find a library by the file's name: where the loader looks anyway, or else in NVIDIA's Python
/// packages beside this program. Returns whether the library is found.
pub fn load_library(file: &str) -> bool {
    load(Path::new(file)) || load_from(&folders(&std::env::current_exe().unwrap_or_default()), file)
}

/// Loads the library from the first folder that has it.
pub(super) fn load_from(folders: &[PathBuf], file: &str) -> bool {
    let loaded = folders.iter().find(|folder| load(&folder.join(file)));
    let Some(folder) = loaded else { return false };
    if file.starts_with("libnvrtc.") {
        // NVRTC asks the loader for it by name alone.
        files(folder, |name| name.starts_with("libnvrtc-builtins.so")).iter().for_each(|path| _ = load(path));
    }
    true
}

/// Loads the library for as long as the process lives: from then on the loader finds the name alone.
fn load(path: &Path) -> bool {
    // SAFETY: NVIDIA's library. Its initializers do nothing of note.
    unsafe { Library::new(path) }.map(std::mem::forget).is_ok()
}

/// The folders of NVIDIA's Python packages for a program that pip installed: in its environment, and in the system's
/// Python if the environment shares that one's packages.
fn folders(program: &Path) -> Vec<PathBuf> {
    let own = program.parent().and_then(Path::parent);
    let shared = own.and_then(shared_python);
    let bases = own.map(PathBuf::from).into_iter().chain(shared.iter().cloned());
    // Debian's Python has the packages of its users in `local`.
    bases.chain(shared.iter().map(|base| base.join("local"))).flat_map(|base| packages(&base)).collect()
}

/// The folder of the Python whose packages a virtual environment shares.
fn shared_python(environment: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(environment.join("pyvenv.cfg")).ok()?;
    let pairs = || text.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim()));
    let value = |wanted: &str| pairs().find(|(key, _)| *key == wanted).map(|(_, value)| value);
    let shares = value("include-system-site-packages").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    Path::new(value("home").filter(|_| shares)?).parent().map(PathBuf::from)
}

/// The folders `lib` of NVIDIA's packages of every Python in `base`.
fn packages(base: &Path) -> Vec<PathBuf> {
    let pythons =
        ["lib", "lib64"].into_iter().flat_map(|lib| files(&base.join(lib), |name| name.starts_with("python3")));
    let sites =
        pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|site| python.join(site).join("nvidia")));
    sites.flat_map(|nvidia| files(&nvidia, |_| true)).map(|package| package.join("lib")).collect()
}

/// The paths in a folder whose names are wanted, sorted.
fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted)).map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_the_environment_come_first_and_the_systems_only_if_it_shares_them() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let made = [
            "venv/lib/python3.12/site-packages/nvidia/cudnn/lib",
            "venv/lib/python3.12/site-packages/nvidia/nccl/lib",
            "usr/lib/python3/dist-packages/nvidia/cu13/lib",
            "usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib",
        ]
        .map(at);
        made.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        let program = at("venv/bin/trainer");
        assert_eq!(folders(&program), made[..2]);
        let config = |shares| format!("home = {}\ninclude-system-site-packages = {shares}\n", at("usr/bin").display());
        std::fs::write(at("venv/pyvenv.cfg"), config("false")).unwrap();
        assert_eq!(folders(&program), made[..2]);
        std::fs::write(at("venv/pyvenv.cfg"), config("true")).unwrap();
        assert_eq!(folders(&program), made);
        assert_eq!(folders(Path::new("/nonexistent/bin/trainer")), Vec::<PathBuf>::new());
    }
}
