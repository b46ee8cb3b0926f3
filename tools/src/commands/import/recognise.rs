//! The trainer that a file is for, by the file's ending and by the names in the file. What is not recognised is refused:
//! every setting would have a default in its place.

use std::path::Path;

use common::UserError;
use toml::Table;
use trainer::config::ConfigSources;
use trainer::config::other_names::Trainer;

use super::python;

/// The trainer that a file is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    Megatron,
    Other(Trainer),
}

/// The files that are read.
const READ: &str = "launch scripts and lists of flags of Megatron, jobs of torchtitan (TOML), configurations of nanoGPT \
                    (Python that assigns to names of its train.py) and TrainingArguments of Hugging Face (JSON) are read";
const AS_JSON: &str = "write its arguments as JSON in Python, open(\"args.json\", \"w\").write(args.to_json_string()), and \
                       import that file";

/// Names in a Python program, and the kind of program that each name shows.
const PROGRAMS: [(&str, &str); 6] = [
    ("SFTConfig", "a script of TRL"),
    ("SFTTrainer", "a script of TRL"),
    ("from trl", "a script of TRL"),
    ("import trl", "a script of TRL"),
    ("TrainingArguments", "a script of Hugging Face's transformers"),
    ("from transformers", "a script of Hugging Face's transformers"),
];

/// The trainer that a file is for, by the file's ending.
///
/// # Errors
/// A file of a form that is not read.
pub(super) fn origin(file: &Path, text: &str) -> Result<Origin, UserError> {
    let name = file.display();
    let refuse = |what: &str, fix: &str| Err(UserError::new(format!("{name} is {what}, which is not read"), READ, fix));
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("py") => {
            if let Some((_, whose)) = PROGRAMS.iter().find(|(word, _)| text.contains(word)) {
                return refuse(whose, AS_JSON);
            }
            let (values, lines) = python::assignments(text);
            let known = values.keys().filter(|name| Trainer::NanoGpt.find(name).is_some()).count();
            match known * 2 >= values.len() + lines.len() {
                true => Ok(Origin::Other(Trainer::NanoGpt)),
                false => refuse("a program in Python", "name its configuration, or its launch script"),
            }
        }
        Some("yaml" | "yml") => {
            let begins = |key: &str| text.lines().any(|line| line.starts_with(key));
            let whose = if begins("base_model:") { "Axolotl's YAML" } else { "YAML" };
            refuse(
                whose,
                "set the options in a TOML file: docs/switching.md has their names, and `trainer options` all",
            )
        }
        Some("toml") if ConfigSources::default().read_text(text, "it").is_ok() && text.contains('[') => {
            let fix = format!("trainer --config {name}");
            refuse("a configuration of this trainer", &fix)
        }
        Some("toml") => Ok(Origin::Other(Trainer::Torchtitan)),
        Some("json") => Ok(Origin::Other(Trainer::HuggingFace)),
        _ => Ok(Origin::Megatron),
    }
}

/// Fails unless the settings of a file are settings of the trainer.
///
/// # Errors
/// A file with no setting of the trainer's, or with few beside others.
pub(super) fn check(trainer: Trainer, given: &Table, file: &str) -> Result<(), UserError> {
    if trainer == Trainer::HuggingFace && (given.contains_key("model_type") || given.contains_key("architectures")) {
        let fix = "trainer convert --from hf for the weights of the model, or --init-from to train on from them";
        return Err(UserError::new(format!("{file} is the configuration of a model, not of a run"), READ, fix));
    }
    let known = given.keys().filter(|name| trainer.find(name).is_some()).count();
    check_known(known, given.len(), &format!("settings are {trainer}'s"), file)
}

/// Fails unless enough of a file is `known`. `whose` says what of whom the `all` should be.
///
/// # Errors
/// A file of another program.
pub(super) fn check_known(known: usize, all: usize, whose: &str, file: &str) -> Result<(), UserError> {
    if known > 0 && known * 2 >= all {
        return Ok(());
    }
    let what = format!("{file} is not recognised: {known} of its {all} {whose}");
    Err(UserError::new(what, READ, "name such a file; --from says whose it is"))
}
