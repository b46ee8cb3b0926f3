//! Changed manifests, weights, models and configurations: each is refused, or taken by its new content.

use std::path::Path;

use launch::watch::activity::Activity;
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;
use tools::commands::cli::{Request, parse};
use trainer::checkpoint::{MANIFEST, verify};
use trainer::config::plan::RunPlan;
use trainer::error::RunError;
use trainer::hf::{DataType, Direction, Pretrained, convert};

use crate::checkpoints::damage::resealed;
use crate::harness::{Folder, checkpoint, expect, run};
use crate::hugging_face::models::trained;
use crate::mutations::each_change;

/// A checkpoint's folder, after one step.
fn saved(folder: &Folder) -> std::path::PathBuf {
    expect(&run(1, &folder.0, "--steps 1"), 0, &[]);
    checkpoint(&folder.0, 1)
}

#[test]
fn a_changed_manifest_is_refused_or_says_the_same() {
    let folder = Folder::new("fuzz-manifest");
    let saved = saved(&folder);
    let manifest = verify(&saved, &Activity::default()).unwrap();
    let file = saved.join(MANIFEST);
    each_change(&std::fs::read(&file).unwrap(), |content| {
        std::fs::write(&file, content).unwrap();
        match verify(&saved, &Activity::default()) {
            Ok(read) => prop_assert_eq!(&read, &manifest),
            Err(damage) => prop_assert!(!damage.to_string().contains(char::is_control), "{}", damage),
        }
        Ok(())
    });
}

#[test]
fn a_changed_manifest_whose_hash_is_right_describes_the_files_that_are_there_or_is_refused() {
    let folder = Folder::new("fuzz-sealed");
    let saved = saved(&folder);
    let manifest = verify(&saved, &Activity::default()).unwrap();
    let file = saved.join(MANIFEST);
    each_change(&std::fs::read(&file).unwrap(), |content| {
        let Some(sealed) = serde_json::from_slice(&content).ok().and_then(resealed) else { return Ok(()) };
        std::fs::write(&file, sealed).unwrap();
        if let Ok(read) = verify(&saved, &Activity::default()) {
            // Names and sizes of tensors are those of the files, or loading refuses them. Their places were checked.
            prop_assert!(read.files.iter().all(|file| manifest.files.contains(file)));
            prop_assert_eq!(read.step, manifest.step);
            for part in &read.tensors {
                let axes = 0..part.shape.len();
                prop_assert!(axes.into_iter().all(|axis| part.offset[axis] + part.sizes[axis] <= part.shape[axis]));
            }
        }
        Ok(())
    });
}

/// A small Llama in Hugging Face's form, and its weights as they come back.
fn llama(folder: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let [ours, theirs, back] = ["ours", "theirs", "back"].map(|name| folder.join(name));
    let flags = "--preset tiny-llama --layers 1 --hidden 16 --heads 2 --kv-heads 1 --ffn 24 --vocab 40 --seq-length 8";
    trained(&ours, &flags.split(' ').collect::<Vec<_>>());
    convert(&ours, &theirs, Direction::ToHuggingFace(DataType::F32)).unwrap();
    convert(&theirs, &back, Direction::FromHuggingFace).unwrap();
    (theirs, std::fs::read(back.join("model.safetensors")).unwrap())
}

#[test]
fn a_changed_header_of_weights_is_refused_or_the_weights_stay() {
    let home = TempDir::new().unwrap();
    let (theirs, weights) = llama(home.path());
    let file = theirs.join("model.safetensors");
    let content = std::fs::read(&file).unwrap();
    let data = 8 + u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    each_change(&content[..data], |header| {
        std::fs::write(&file, [&header[..], &content[data..]].concat()).unwrap();
        let back = TempDir::new_in(home.path()).unwrap();
        match convert(&theirs, back.path(), Direction::FromHuggingFace) {
            Ok(_) => prop_assert!(std::fs::read(back.path().join("model.safetensors")).unwrap() == weights),
            Err(RunError::User(error)) => prop_assert!(!error.to_string().contains(char::is_control), "{}", error),
            Err(error) => prop_assert!(false, "{}", error),
        }
        Ok(())
    });
}

#[test]
fn a_changed_model_configuration_is_refused_or_read_as_it_stands() {
    let home = TempDir::new().unwrap();
    let (theirs, _) = llama(home.path());
    let file = theirs.join("config.json");
    let meanings = [
        ("num_hidden_layers", "model.layers"),
        ("hidden_size", "model.hidden"),
        ("num_attention_heads", "model.heads"),
        ("num_key_value_heads", "model.kv_heads"),
        ("intermediate_size", "model.ffn"),
        ("vocab_size", "model.vocab"),
        ("rms_norm_eps", "model.norm_eps"),
        ("rope_theta", "model.rope_base"),
        ("tie_word_embeddings", "model.tie_embeddings"),
    ];
    let written = std::fs::read(&file).unwrap();
    each_change(&written, |content| {
        std::fs::write(&file, &content).unwrap();
        let read = Pretrained::open(&theirs);
        if let Ok(read) = &read {
            let json: Value = serde_json::from_slice(&content).unwrap();
            for (theirs, ours) in meanings {
                let value = &read.options()[ours];
                let there = json.get(theirs).filter(|value| !value.is_null());
                let same = there.is_none_or(|there| match value {
                    toml::Value::Integer(value) => there.as_i64() == Some(*value),
                    toml::Value::Float(value) => there.as_f64() == Some(*value),
                    value => there.as_bool() == value.as_bool(),
                });
                prop_assert!(same, "{theirs} = {there:?} was read as {value}");
            }
        }
        // Sizes that no machine has are refused too.
        if let Err(error) = plan(&["--init-from", theirs.to_str().unwrap()]) {
            prop_assert!(!error.contains(char::is_control), "{}", error);
        }
        Ok(())
    });
}

/// The plan of a run with these flags, or why it is refused.
fn plan(flags: &[&str]) -> Result<RunPlan, String> {
    let request = parse(["trainer"].iter().chain(flags).map(Into::into)).map_err(|error| error.to_string())?;
    let Request::Train(request) = request else { return Err("it does not train".into()) };
    RunPlan::new(request.config, 1).map_err(|error| error.to_string())
}

#[test]
fn a_changed_configuration_is_refused_or_every_key_of_it_counts() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("run.toml");
    let path = file.to_str().unwrap().to_string();
    let written = "[model]\nlayers = 2\nhidden = 32\nheads = 2\nseq_length = 16\nnorm_eps = 1e-5\nkv_heads = 2\n\
                   [train]\nsteps = 20\nglobal_batch_size = 32\nmicro_batch_size = 4\nrampup_batch_size = [8, 8, 100]\n\
                   [optimizer]\nlr = 1e-3\nbetas = [0.9, 0.95]\neps = 1e-8\nclip = 1.0\nschedule = \"cosine\"\n\
                   [parallel]\ntensor = 1\npipeline = 1\n[cuda_graph]\nenable = true\n[checkpoint]\ninterval = 10\n";
    each_change(written.as_bytes(), |content| {
        std::fs::write(&file, &content).unwrap();
        match plan(&["--config", &path]) {
            Ok(plan) => {
                let given: toml::Table = std::str::from_utf8(&content).unwrap().parse().unwrap();
                let resolved = toml::Table::try_from(&plan.config).unwrap();
                for (section, keys) in given {
                    for (key, value) in keys.as_table().unwrap() {
                        let taken = &resolved[&section][key];
                        let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|n| n as f64));
                        let items = |value: &toml::Value| {
                            value.as_array().map(|all| all.iter().map(number).collect::<Vec<_>>())
                        };
                        let same = taken == value || number(taken) == number(value).or(Some(f64::NAN));
                        prop_assert!(same || items(taken) == items(value), "{section}.{key} = {value} became {taken}");
                    }
                }
            }
            // Several mistakes have a line each.
            Err(error) => {
                let is_ours = |(at, line): (usize, &str)| at == 0 || line.starts_with("  ");
                prop_assert!(error.lines().enumerate().all(is_ours), "{}", error);
                prop_assert!(!error.replace('\n', "").contains(char::is_control), "{}", error);
            }
        }
        Ok(())
    });
}
