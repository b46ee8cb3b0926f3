//! Files beside the weights of a Hugging Face model. Checkpoints keep them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use trainer::hf::{DataType, Direction, convert};

use super::refused;
use crate::harness::{Folder, copy_folder};
use crate::hf::trained;

type Spoil = fn(&Path);

/// Ways to spoil a file, and the words about each.
const SPOILT: &[(Spoil, &str)] = &[
    (|path| symlink("/dev/zero", path).unwrap(), "cannot be read: it is not a regular file"),
    (|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()), "it is not a regular file"),
    (|path| std::fs::create_dir(path).unwrap(), "it is not a regular file"),
    (|path| std::fs::File::create(path).unwrap().set_len(1 << 40).unwrap(), "has 1099511627776 bytes"),
];

/// Wrong texts of a JSON file, and the words about each.
const WRONG: &[(&str, &str)] =
    &[("", "is not JSON"), ("[1]", "is not a JSON object"), ("{\"eos_token_id\": 1", "is not JSON")];

#[test]
fn files_of_a_model_that_have_no_end_or_no_meaning_are_refused_before_training_and_in_conversions() {
    let made = Folder::new("hostile-model-files");
    trained(&made.path("ours"), &["--preset", "tiny-llama"]);
    convert(&made.path("ours"), &made.path("theirs"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    let says = |file: &str, spoil: &dyn Fn(&Path), needle: &str| {
        let folder = Folder::new("hostile-model-file");
        copy_folder(&made.path("theirs"), &folder.path("model"));
        spoil(&folder.path("model").join(file));
        let needles = [&format!("model/{file} "), needle];
        refused(&format!("{file}: {needle}"), &folder.0, &["convert", "--from", "hf", "model", "out"], &needles);
        let run = ["--init-from", "model", "--steps", "1", "--device", "host"];
        refused(&format!("{file}: {needle}, training"), &folder.0, &run, &needles);
        assert!(!folder.path("out").exists() && !folder.path("runs").exists(), "{file}: nothing was begun");
    };
    for file in ["generation_config.json", "tokenizer_config.json", "merges.txt", "tokenizer.model"] {
        for (spoil, needle) in SPOILT {
            says(file, spoil, needle);
        }
    }
    let deep = "{\"a\":".to_string() + &"[".repeat(1 << 20);
    for file in ["generation_config.json", "tokenizer_config.json"] {
        for (text, needle) in WRONG.iter().chain(&[(&deep[..], "is not JSON: recursion limit exceeded")]) {
            says(file, &|path| std::fs::write(path, text).unwrap(), needle);
        }
    }
}
