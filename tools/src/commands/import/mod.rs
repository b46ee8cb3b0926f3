//! `trainer import`: a configuration made from one of another trainer.

mod arithmetic;
#[cfg(test)]
mod every_name;
mod megatron;
mod page;
mod python;
mod recognise;
mod settings_file;
mod shell;
mod shell_words;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use common::files::read_text;
use common::format::counted;
use common::terminal::warn;
use common::{Choice, UserError};

use self::recognise::Origin;
use super::args::{path, whole};
use trainer::config::other_names::Trainer;
use trainer::error::RunError;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// A file to make a configuration from.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct ImportRequest {
    /// The file.
    #[arg(value_name = "FILE", value_parser = path())]
    file: PathBuf,
    /// The trainer that the file is for. If not given: by its ending, .py, .toml or .json; else megatron.
    #[arg(long, value_name = "TRAINER", value_parser = origin())]
    from: Option<Origin>,
    /// Ranks of the run, for batch sizes that count each rank. If not given: those that the script starts or a job's degrees
    /// say, or 1.
    #[arg(long, value_name = "N", value_parser = whole(1..=1 << 17))]
    ranks: Option<usize>,
}

const WORDS: [(&str, Origin); 4] = [
    ("megatron", Origin::Megatron),
    ("nanogpt", Origin::Other(Trainer::NanoGpt)),
    ("torchtitan", Origin::Other(Trainer::Torchtitan)),
    ("hf", Origin::Other(Trainer::HuggingFace)),
];

fn origin() -> impl TypedValueParser<Value = Origin> {
    let origin = |word: String| WORDS.into_iter().find(|(known, _)| *known == word).map(|(_, origin)| origin);
    PossibleValuesParser::new(WORDS.map(|(word, _)| word)).try_map(move |word| origin(word).ok_or("unknown"))
}

/// The configuration as TOML.
///
/// # Errors
/// A file that cannot be read, or that is not of its trainer's form.
pub(super) fn run(request: &ImportRequest) -> Result<String, RunError> {
    let ImportRequest { file, from, ranks } = request;
    let name = file.display().to_string();
    let text = read(file)?;
    let origin = from.map_or_else(|| recognise::origin(file, &text), Ok)?;
    let (imported, ranks, whose) = match origin {
        Origin::Megatron => {
            let (imported, ranks) = megatron::import(&text, &name, *ranks)?;
            (imported, ranks, "Megatron")
        }
        Origin::Other(trainer) => {
            let (imported, ranks) = settings_file::import(trainer, &text, &name, *ranks)?;
            (imported, ranks, trainer.word())
        }
    };
    if imported.left() > 0 {
        warn(&format!(
            "notice: {} at the end of the configuration about what is left out",
            counted(imported.left(), "comment")
        ));
    }
    let of = file.file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned());
    Ok(imported
        .page(&format!("Made by `trainer import` from {of}, a run of {whose} on {}.", counted(ranks, "rank")), ranks))
}

fn read(file: &Path) -> Result<String, UserError> {
    let rule = "it is a script, or a file of settings";
    let refuse = |problem: String, fix: &str| Err(UserError::new(format!("{} {problem}", file.display()), rule, fix));
    if file.is_dir() {
        let fix = "trainer convert --from hf for the weights of a model, or --init-from to train on from them";
        return refuse("is a folder".into(), fix);
    }
    if file.extension().is_some_and(|ending| ending == "bin") {
        let fix = "write it as JSON in Python: open(\"args.json\", \"w\").write(args.to_json_string())";
        return refuse("is no text".into(), fix);
    }
    read_text(file, LARGEST).or_else(|error| refuse(format!("cannot be read: {error}"), "check the path"))
}
