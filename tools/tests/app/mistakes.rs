//! Mistakes of users on the command line, in a config or with folders: each is one line with the value, the rule and
//! the fix, before anything has begun. Mistakes in data are in `bad_data.rs`, damaged checkpoints in `damage.rs`.

use std::path::Path;
use std::process::Command;

use crate::harness::{Folder, cases};

/// Runs `trainer FLAGS` in `folder` and returns the differences from the expected end: exit code 2, nothing on stdout,
/// and one line that holds all needles, a rule and a fix.
fn problems(folder: &Path, flags: &str, variables: &[(&str, &str)], needles: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    // A value of several words has two underscores for a space here.
    command.current_dir(folder).args(flags.split_whitespace().map(|flag| flag.replace("__", " ")));
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.trim_end();
    let has = |needle: &&str| text.contains(needle);
    let lacks = needles.iter().chain(&["error", ". Rule: ", ". Fix: "]).filter(|needle| !has(needle));
    let mut problems: Vec<String> = lacks.map(|needle| format!("`{needle}` is missing")).collect();
    for (ok, problem) in [
        (output.status.code() == Some(2), "the exit code is not 2"),
        (output.stdout.is_empty(), "it began before it was refused"),
        // Several flags have a line each. Other mistakes come alone here; `all_mistakes.rs` has several.
        (line.lines().skip(1).all(|line| line.starts_with("  --")), "it is not one line"),
        (line.lines().count() == 1 || has(&"flags are not accepted"), "it is not one line"),
        (!["Rule: .", "Fix: ."].iter().any(has) && !line.ends_with("Fix:"), "a part of it is empty"),
        (line.lines().all(|line| !line.trim_start().contains("  ")), "a part of it is empty"),
    ] {
        problems.extend((!ok).then(|| problem.to_string()));
    }
    problems.iter().map(|problem| format!("trainer {flags}\n  {problem}: {line}\n")).collect()
}

pub fn refused(folder: &Path, flags: &str, variables: &[(&str, &str)], needles: &[&str]) {
    let problems = problems(folder, flags, variables, needles);
    assert!(problems.is_empty(), "{}", problems.concat());
}

/// Fails unless each case of a file in `refused` is refused in this folder.
pub fn all_refused(folder: &Path, name: &str) {
    let all: Vec<String> =
        cases(name).into_iter().flat_map(|(flags, needles)| problems(folder, flags, &[], &needles)).collect();
    assert!(all.is_empty(), "{}", all.concat());
}

#[test]
fn every_mistake_is_one_line_with_the_value_the_rule_and_the_fix() {
    let folder = Folder::new("mistakes");
    std::fs::create_dir(folder.path("empty")).unwrap();
    std::fs::create_dir(folder.path("taken.dot")).unwrap();
    for (name, text) in [
        ("file", ""),
        ("value.toml", "[train]\nsteps = \n"),
        ("twice.toml", "[train]\nsteps = 1\nsteps = 2\n"),
        ("section.toml", "[trian]\nsteps = 1\n"),
        ("key.toml", "[train]\nstpes = 1\n"),
        ("type.toml", "[train]\nsteps = \"many\"\n"),
        ("flat.toml", "train = 5\n"),
        ("steps.toml", "[train]\nsteps = 5\n"),
        ("traced.toml", "[logging]\ntrace = \"t.json\"\n"),
        ("mlp/config.toml", "[model]\nkind = \"mlp\"\n"),
        ("words/config.toml", "[model]\nvocab = 400\n"),
        ("bytes/config.toml", "[model]\nseq_length = 8\n"),
    ] {
        let path = folder.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    std::fs::write(folder.path("binary.toml"), [0xff, 0xfe]).unwrap();
    all_refused(&folder.0, "mistakes");
    for left in ["runs", "out", "log/metrics.jsonl"] {
        assert!(!folder.path(left).exists(), "{left} was made");
    }
}
