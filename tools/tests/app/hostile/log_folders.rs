//! Folders of runs with links, pipes and folders that another user has put in the place of a run's files.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::refused;
use crate::harness::{Folder, expect, run};

/// The files that a run writes into its folder, and the flag that has it write them.
const WRITTEN: &[(&str, &str)] = &[
    ("config.toml", ""),
    ("config.toml.tmp", ""),
    ("metrics.jsonl", ""),
    ("metrics.jsonl.tmp", ""),
    ("run.id", ""),
    ("run.lock", ""),
    ("run.log", ""),
    ("rank-0.jsonl", ""),
    ("ranks.json", ""),
    ("ranks.json.tmp", ""),
    ("wandb-history.jsonl", "--wandb"),
    ("wandb-summary.json", "--wandb"),
    ("wandb-client.log", "--wandb"),
    ("trace.json", "--trace=log/trace.json"),
    ("graphs.json", "--graph-report=log/graphs.json"),
    ("graphs.dot", "--graph-report=log/graphs.json"),
    ("graphs.svg", "--graph-report=log/graphs.json"),
];

/// The files of a run's folder that others read.
const READ: [&str; 4] = ["config.toml", "metrics.jsonl", "rank-0.jsonl", "ranks.json"];

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The flags of a run that would be short.
fn flags(flag: &str) -> Vec<&str> {
    let all = [
        "--preset",
        "tiny",
        "--device",
        "host",
        "--steps",
        "1",
        "--lr-warmup-steps",
        "0",
        "--threads",
        "1",
        "--log-dir",
        "log",
        flag,
    ];
    all.into_iter().filter(|word| !word.is_empty()).collect()
}

#[test]
fn a_run_writes_through_no_link_in_its_folder() {
    for (name, flag) in WRITTEN {
        for (there, what) in [(true, "a file"), (false, "nothing")] {
            let folder = Folder::new("hostile-log-link");
            let victim = folder.path("victim");
            if there {
                std::fs::write(&victim, "keep me").unwrap();
            }
            std::fs::create_dir(folder.path("log")).unwrap();
            symlink(&victim, folder.path("log").join(name)).unwrap();
            refused(&format!("{name} -> {what}"), &folder.0, &flags(flag), &[name, "it is a link"]);
            assert_eq!(std::fs::read_to_string(&victim).ok(), there.then(|| "keep me".into()), "{name}");
        }
    }
}

#[test]
fn a_run_writes_to_no_file_that_has_a_second_name() {
    for (name, flag) in WRITTEN {
        let folder = Folder::new("hostile-log-names");
        let victim = folder.path("victim");
        std::fs::write(&victim, "keep me").unwrap();
        std::fs::create_dir(folder.path("log")).unwrap();
        std::fs::hard_link(&victim, folder.path("log").join(name)).unwrap();
        refused(name, &folder.0, &flags(flag), &[name, "it has 2 names (hard links)"]);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "keep me", "{name}");
    }
}

#[test]
fn a_pipe_or_a_folder_in_the_place_of_a_runs_file_does_not_hold_up_its_start() {
    for (name, flag) in WRITTEN {
        for make in [pipe, |path: &Path| std::fs::create_dir(path).unwrap()] {
            let folder = Folder::new("hostile-log-pipe");
            std::fs::create_dir(folder.path("log")).unwrap();
            make(&folder.path("log").join(name));
            refused(name, &folder.0, &flags(flag), &[name, "it is not a regular file"]);
        }
    }
}

#[test]
fn report_and_top_do_not_wait_for_a_pipe_in_the_folder_of_a_run() {
    for name in READ {
        let folder = Folder::new("hostile-log-read");
        std::fs::create_dir(folder.path("log")).unwrap();
        std::fs::write(folder.path("log/rank-7.jsonl"), "{}\n").unwrap();
        pipe(&folder.path("log").join(name));
        for command in ["report", "top"] {
            let needles = [name, "cannot be read: it is not a regular file"];
            refused(&format!("{command}, {name}"), &folder.0, &[command, "log"], &needles);
        }
    }
}

#[test]
fn the_folder_itself_may_be_a_link_that_the_user_named() {
    let folder = Folder::new("log-folder-link");
    std::fs::create_dir(folder.path("elsewhere")).unwrap();
    symlink(folder.path("elsewhere"), folder.path("log")).unwrap();
    expect(&run(1, &folder.0, "--steps 1"), 0, &["done: loss"]);
    assert!(folder.path("elsewhere/metrics.jsonl").exists());
}
