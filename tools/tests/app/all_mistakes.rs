//! Several mistakes of different kinds in one command line are told at once: flags, values, rules between settings, files,
//! ranks and hardware.

use std::path::Path;
use std::process::Command;

use crate::harness::{Folder, cases};

/// Mistakes that others follow from, which are not told.
const ALONE: &[(&str, &str)] = &[
    ("--global-batch-size many --micro-batch-size 32", "train.global_batch_size = \"many\""),
    ("--n_layer 12 --pipeline-layers [12]", "--n_layer is unknown"),
    ("--preset nope --steps 5 --pipeline-layers [12]", "model.preset = \"nope\""),
    ("--config absent.toml --pipeline-layers [12]", "config file absent.toml cannot be read"),
    ("--init-from absent --pipeline-layers [12]", "model.init_from = absent does not exist"),
];

fn refusal(folder: &Path, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.current_dir(folder).args(line.split_whitespace().map(|flag| flag.replace("__", " ")));
    // No GPU is there, whatever the machine has.
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_string();
    assert_eq!(output.status.code(), Some(2), "{line}: {text}");
    assert!(output.stdout.is_empty(), "{line}: it began before it was refused");
    text
}

fn folder() -> Folder {
    let folder = Folder::new("all-mistakes");
    let text = "[train]\nstpes = 1\nseed = -1\n[trian]\nsteps = 1\n";
    std::fs::write(folder.path("several.toml"), text).unwrap();
    std::fs::write(folder.path("file"), "").unwrap();
    folder
}

#[test]
fn all_mistakes_of_a_command_line_are_told_at_once() {
    let folder = folder();
    let mut wrong = Vec::new();
    // The parts of a case are the beginnings of the lines about it, in order.
    for (line, parts) in cases("several") {
        let text = refusal(&folder.0, line);
        let head = format!("error: {} mistakes. Rule: nothing begins before", parts.len());
        let told: Vec<&str> = text.lines().skip(1).map(str::trim_start).collect();
        let as_told = told.len() == parts.len() && told.iter().zip(&parts).all(|(told, part)| told.starts_with(*part));
        if !(text.starts_with(&head) && as_told && told.iter().all(|told| told.contains(". Fix: "))) {
            wrong.push(format!("trainer {line}\n{text}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
    assert!(!folder.path("runs").exists() && !folder.path("t.json").exists(), "something was written");
}

#[test]
fn what_follows_from_a_mistake_is_not_told() {
    let folder = folder();
    for (line, what) in ALONE {
        let text = refusal(&folder.0, line);
        assert!(text.starts_with(&format!("error: {what}")) && text.lines().count() == 1, "{line}: {text}");
    }
}
