//! `trainer top` without a terminal, and on a folder that is not that of a run.

use std::process::Command;

use crate::harness::{Folder, expect, run};

#[test]
fn without_a_terminal_the_user_is_told_to_use_the_report() {
    let folder = Folder::new("top");
    expect(&run(2, &folder.0, "--steps 3 --heartbeat-seconds 0.05"), 0, &[]);
    assert!(folder.path("log/ranks.json").is_file(), "rank 0 keeps the state of all ranks");
    let top = |folder: &str| Command::new(env!("CARGO_BIN_EXE_trainer")).args(["top", folder]).output().unwrap();
    let log = folder.path("log");
    let fix = format!("Fix: for a file use trainer report {}", log.display());
    expect(&top(log.to_str().unwrap()), 2, &["trainer top without a terminal", "Rule: ", &fix]);
    expect(&top("no-such-run"), 2, &["no-such-run has neither metrics.jsonl nor rank-0.jsonl", "Fix: "]);
}
