//! Files beside the weights of a Hugging Face model. Checkpoints keep them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use trainer::hf::{DataType, Direction, convert};

use super::refused;
use crate::harness::{Folder, copy_folder, expect};
use crate::hugging_face::models::trained;

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

#[test]
fn weights_that_are_not_finite_are_named_by_every_command_that_reads_them() {
    let folder = Folder::new("hostile-not-finite");
    trained(&folder.path("ours"), &["--preset", "tiny-llama"]);
    convert(&folder.path("ours"), &folder.path("model"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    std::fs::write(folder.path("text.txt"), "some text to read ".repeat(40)).unwrap();
    let path = folder.path("model/model.safetensors");
    let sound = std::fs::read(&path).unwrap();
    let header: serde_json::Value = {
        let end = 8 + u64::from_le_bytes(sound[..8].try_into().unwrap()) as usize;
        serde_json::from_slice(&sound[8..end]).unwrap()
    };
    let tensor = "model.layers.1.mlp.up_proj.weight";
    let begin = sound.len() - header.as_object().unwrap().values().map(ends).max().unwrap() as usize
        + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    for (value, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut spoilt = sound.clone();
        spoilt[begin + 20..begin + 24].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&path, spoilt).unwrap();
        let needle = format!("model.safetensors has {shown} in tensor `{tensor}`, element 5 of its file");
        for command in [
            "convert --from hf model out",
            "--init-from model --steps 1 --device host --data-path text.txt --split 1 --eval-interval 0",
            "sample --checkpoint model --tokenizer byte --device host --prompt a",
            "eval model text.txt --device host",
        ] {
            let mut trainer = Command::new(env!("CARGO_BIN_EXE_trainer"));
            let output = trainer.current_dir(&folder.0).args(command.split(' ')).output().unwrap();
            expect(&output, 2, &[&needle]);
        }
    }
    // Finite weights may have scores that are not.
    let mut huge = sound;
    huge[begin..begin + 64 * 176 * 4]
        .chunks_exact_mut(4)
        .for_each(|value| value.copy_from_slice(&3e38f32.to_le_bytes()));
    std::fs::write(&path, huge).unwrap();
    let mut trainer = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let output = trainer.current_dir(&folder.0).args("eval model text.txt --device host".split(' ')).output().unwrap();
    expect(&output, 3, &["the model's loss on text.txt is", "Rule: losses are finite"]);
}

/// The end of a tensor's values in a file, from its header's entry.
fn ends(entry: &serde_json::Value) -> u64 {
    entry["data_offsets"][1].as_u64().unwrap_or(0)
}

#[test]
fn a_dry_run_and_a_plan_want_the_weights_that_training_would_read() {
    let folder = Folder::new("hostile-no-weights");
    trained(&folder.path("ours"), &["--preset", "tiny-llama"]);
    convert(&folder.path("ours"), &folder.path("model"), Direction::ToHuggingFace(DataType::F32)).unwrap();
    let says = |flags: &str, needle: &str| {
        for command in ["--dry-run --device host", "plan --gpu h100-80 --ranks 2 --"] {
            let arguments: Vec<&str> = command.split(' ').chain(flags.split(' ')).collect();
            refused(&format!("{command} {flags}"), &folder.0, &arguments, &[needle]);
        }
    };
    says("--init-from model --ffn 100", "has shape [176, 64], the model [100, 64]");
    says("--init-from model --num-layers 3", "has no tensor `model.layers.2.");
    std::fs::remove_file(folder.path("model/model.safetensors")).unwrap();
    says("--init-from model", "model.safetensors cannot be read");
}
