//! A corpus of inputs that were made to hang, to abort or to fill memory. Each is refused with exit code 2 and one line,
//! within 5 s of processor time and 2 GiB of address space.

mod configs;
mod imports;
mod job_files;
mod log_folders;
mod model_files;
mod other_checkpoints;
mod parquet;
mod questions;
mod templates;
mod tokenizers;
mod unpacked_data;

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::wait_for;

/// Runs `trainer ARGUMENTS` in a folder under the limits. Fails unless it ends with exit code 2 and one line on stderr
/// that has the problem, the rule, the fix, and all of `needles`. Time is counted in processor seconds, so a busy
/// machine fails no test; a run that only waits fails after `LIMIT` of the harness.
pub fn refused(name: &str, folder: &Path, arguments: &[&str], needles: &[&str]) {
    let mut command = Command::new("prlimit");
    command.args(["--cpu=5", "--as=2147483648", "--core=0", "--", env!("CARGO_BIN_EXE_trainer")]);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_for(&format!("{name} ends"), || child.try_wait().unwrap());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{name}: {:?}: {text}", output.status);
    assert_eq!(text.trim_end().lines().count(), 1, "{name}: {text}");
    for needle in needles.iter().chain(&["error: ", "Rule: ", "Fix: "]) {
        assert!(text.contains(needle), "{name}: `{needle}` is not in: {text}");
    }
}
