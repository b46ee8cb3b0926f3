//! The Containerfile fits the repository. `./x container` tries its instructions, in some minutes.

use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The instructions of the Containerfile, with the lines of each joined.
fn instructions() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("container/Containerfile")).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    let joined = lines.replace("\\\n", " ");
    let instructions = joined.lines().filter_map(|line| line.split_once(' '));
    instructions.map(|(name, rest)| (name.to_string(), rest.trim().to_string())).collect()
}

#[test]
fn what_the_image_copies_is_in_the_repository_and_its_instructions_can_be_tried() {
    let script = std::fs::read_to_string(root().join("container/try.sh")).unwrap();
    let known = |name: &str| script.contains(&format!("            {name})")) || script.contains(&format!("{name} |"));
    let mut copied = 0;
    for (name, rest) in instructions() {
        assert!(known(&name) || name == "WORKDIR", "{name} is an instruction that container/try.sh does not know");
        let words: Vec<&str> = rest.split_whitespace().collect();
        if name == "COPY" && !words[0].starts_with("--from") {
            for source in &words[..words.len() - 1] {
                let listed = Command::new("git").args(["ls-files", source]).current_dir(root()).output().unwrap();
                assert!(!listed.stdout.is_empty(), "{source} is not in the repository");
                copied += 1;
            }
        }
    }
    assert!(copied > 10, "{copied}");
}

#[test]
fn the_image_is_built_from_every_crate() {
    let manifest: toml::Table = std::fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let instructions = instructions();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        let copy = format!("{0} {0}", member.as_str().unwrap());
        assert!(instructions.iter().any(|(name, rest)| name == "COPY" && *rest == copy), "COPY {copy} is missing");
    }
}
