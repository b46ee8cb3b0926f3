//! Shells, the manual and docs/options.md know the trainer's flags.

use std::process::{Command, Output};

use crate::harness::{Folder, expect};

fn trainer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).output().unwrap()
}

#[test]
fn shells_complete_flags_and_commands() {
    let flag = ["--enable-cuda-graph", "launch", "kubernetes"];
    for (shell, needles) in [("bash", &flag[..]), ("zsh", &flag[..]), ("fish", &["enable-cuda-graph", "kubernetes"])] {
        expect(&trainer(&["completions", shell]), 0, needles);
    }
    expect(&trainer(&["completions", "csh"]), 2, &["`csh`", "bash", ". Rule: ", ". Fix: "]);
    // The completions that bash proposes for the beginning of a flag.
    let line = "source <(\"$0\" completions bash); COMP_WORDS=(trainer --enable-c) COMP_CWORD=1; \
                _trainer trainer --enable-c trainer; echo \"${COMPREPLY[*]}\"";
    let bash = Command::new("bash").args(["-c", line, env!("CARGO_BIN_EXE_trainer")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&bash.stdout), "--enable-cuda-graph\n", "{bash:?}");
}

#[test]
fn short_help_has_the_usual_flags_and_help_has_all() {
    let help = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    for command in [&[][..], &["bench"]] {
        let [short, long] = ["-h", "--help"].map(|flag| help(&[command, &[flag]].concat()));
        for flag in ["--data-path", "--steps", "--lr ", "--save"] {
            assert!(short.contains(flag) && long.contains(flag), "{flag}");
        }
        for flag in ["--skip-step-interval", "--rope-scaling", "--recompute-activations"] {
            assert!(!short.contains(flag), "{flag}");
        }
        assert!(long.contains("--rope-scaling") && short.lines().count() < 140, "{}", short.lines().count());
    }
}

#[test]
fn the_page_of_options_is_current() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/options.md");
    let (kept, made) = (std::fs::read_to_string(page).unwrap(), trainer(&["options"]).stdout);
    assert!(kept.as_bytes() == made, "docs/options.md is not what `trainer options` prints. Fix: ./x docs");
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let folder = Folder::new("manual");
    let pages = folder.path("man1");
    expect(&trainer(&["man", pages.to_str().unwrap()]), 0, &["wrote the pages"]);
    for (page, needle) in
        [("trainer", r"\-\-enable\-cuda\-graph"), ("trainer-launch", r"\-\-ranks"), ("trainer-job-slurm", r"\-\-qos")]
    {
        let text = std::fs::read_to_string(pages.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(needle) && text.contains(".SH NAME"), "{page}: {needle} is not in {text}");
    }
    std::fs::write(folder.path("file"), "").unwrap();
    expect(&trainer(&["man", folder.path("file").to_str().unwrap()]), 3, &["the manual in ", "File exists"]);
}
