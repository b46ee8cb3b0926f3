//! The documents are true: the trainer takes their commands, and the targets of their links exist.

use std::path::{Path, PathBuf};

use tools::commands::cli::parse;
use trainer::config::recipes::RECIPES;

use crate::harness::Folder;

/// Programs of clusters that the documents call. `walks.rs` plays them.
const CLUSTERS: &[&str] = &["kubectl", "podman", "sbatch", "scancel", "squeue", "srun", "tail"];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into()
}

pub fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// The fenced blocks of that language, one after the other, with lines that go on joined.
pub fn fenced(document: &str, language: &str) -> String {
    let text = read(document);
    let fence = format!("\n```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect::<String>().replace("\\\n", " ")
}

/// A shell's words of a line: split at spaces but for those in double quotes, without its comment, and without `>` and
/// the file after it.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap().split(" > ").next().unwrap();
    let parts = line.split('"').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().map(String::from).collect(),
        _ => vec![part.to_string()],
    });
    words.collect()
}

/// Fails unless the program of a line exists and takes its arguments.
fn assert_taken(line: &str, x: &str) {
    // The text piped to a command is the user's own.
    let words = words(if line.starts_with("echo ") { line.split_once(" | ").map_or(line, |(_, to)| to) } else { line });
    let program = words.iter().position(|word| !word.contains('=')).unwrap_or_else(|| panic!("no command: {line}"));
    let words = match &words[program..] {
        [mpirun, n, ranks, rest @ ..] if mpirun == "mpirun" && n == "-n" && ranks.parse::<u32>().is_ok() => rest,
        words => words,
    };
    match words[0].as_str() {
        "trainer" => {
            parse(words.iter().map(Into::into)).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        "./x" => assert!(x.contains(&format!("\n    {})", words[1])), "{line}: no such command of ./x"),
        "python" => assert!(root().join(&words[1]).exists(), "{line}: no such file"),
        "cargo" => {
            let [build, release, p, package] = &words[1..] else { panic!("{line}: no build of ours") };
            assert_eq!([build, release, p], ["build", "--release", "-p"], "{line}");
            assert!(root().join(package).join("Cargo.toml").exists(), "{line}: no crate of ours");
        }
        program => assert!(CLUSTERS.contains(&program), "{line}: no program of ours"),
    }
}

/// The documents at the root, all pages of docs/, and each crate's files and rules, by their paths below the root.
fn documents() -> Vec<String> {
    let mut documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(String::from).to_vec();
    for entry in std::fs::read_dir(root()).unwrap() {
        let page = format!("{}/ARCHITECTURE.md", entry.unwrap().file_name().into_string().unwrap());
        if root().join(&page).exists() {
            documents.push(page);
        }
    }
    for folder in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                documents.push(format!("{folder}/{name}"));
            }
        }
    }
    documents
}

#[test]
fn every_command_in_the_documents_and_recipes_is_taken() {
    let folder = Folder::new("documents");
    // The files that the commands read while they are parsed: a configuration, and models.
    std::fs::write(folder.path("run.toml"), "[train]\nsteps = 5\n").unwrap();
    let models =
        [("llama-hf", "tiny-llama"), ("llama-adapters", "tiny-llama"), ("preferred", "tiny-llama"), ("ckpt", "tiny")];
    for (model, preset) in models {
        std::fs::create_dir(folder.path(model)).unwrap();
        std::fs::write(folder.path(model).join("config.toml"), format!("[model]\npreset = \"{preset}\"\n")).unwrap();
    }
    // The folders that job files look for.
    for data in ["texts", "tokens"] {
        std::fs::create_dir(folder.path(data)).unwrap();
    }
    std::env::set_current_dir(&folder.0).unwrap();
    let documents: Vec<String> = documents().iter().map(|document| fenced(document, "sh")).collect();
    let recipes = RECIPES.iter().flat_map(|(_, text)| text.lines().filter_map(|line| line.strip_prefix("#   ")));
    let lines: Vec<&str> = documents.iter().flat_map(|text| text.lines()).chain(recipes).collect();
    let lines: Vec<&str> = lines.into_iter().filter(|line| !line.trim().is_empty()).collect();
    assert!(lines.len() > 40, "{lines:?}");
    let x = read("x");
    lines.iter().for_each(|line| assert_taken(line, &x));
    std::env::set_current_dir(root()).unwrap(); // the folder goes
}

#[test]
fn every_source_and_test_that_the_documents_name_is_there() {
    let mut found = 0;
    for document in documents() {
        let text = read(&document);
        // Every second part stands between backticks. A path begins at the root, or on a crate's page at its sources; a
        // bare name is only part of one.
        let sources = root().join(&document).parent().unwrap().join("src");
        for name in
            text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs") && !name.contains([':', '*']))
        {
            if name.matches('/').count() >= 2 {
                let found_at = [root().join(name), sources.join(name)];
                assert!(found_at.iter().any(|path| path.is_file()), "{document} names {name}, which is not there");
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn every_link_leads_to_a_file() {
    let mut found = 0;
    for document in documents() {
        let text = read(&document);
        for link in text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap()) {
            let path = root().join(&document).parent().unwrap().join(link);
            assert!(link.starts_with("https://") || path.exists(), "{document}: {link} is not there");
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn the_changelog_begins_with_this_version() {
    let text = read("CHANGELOG.md");
    let first = text.split("\n## [").nth(1).unwrap();
    assert!(first.starts_with(&format!("{}]", env!("CARGO_PKG_VERSION"))), "{first}");
}
