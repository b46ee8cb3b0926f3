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

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgMatches, Command, value_parser};
use common::UserError;
use common::files::read_text;
use common::format::counted;
use common::terminal::warn;

use self::recognise::Origin;
use super::args::{positional, text};
use trainer::config::other_names::Trainer;
use trainer::error::RunError;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// A file to make a configuration from.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    file: PathBuf,
    from: Option<Origin>,
    /// The number of ranks of the run, if it is given.
    ranks: Option<usize>,
}

const WORDS: [(&str, Origin); 4] = [
    ("megatron", Origin::Megatron),
    ("nanogpt", Origin::Other(Trainer::NanoGpt)),
    ("torchtitan", Origin::Other(Trainer::Torchtitan)),
    ("hf", Origin::Other(Trainer::HuggingFace)),
];

pub(super) fn command() -> Command {
    let parser = PossibleValuesParser::new(WORDS.map(|(word, _)| word));
    let origin =
        |word: String| WORDS.iter().find(|(known, _)| *known == word).map(|(_, origin)| *origin).ok_or("unknown");
    Command::new("import")
        .about(
            "Prints a configuration made from another trainer's: a launch script or a list of arguments of Megatron, a \
             configuration of nanoGPT or torchtitan, or TrainingArguments of Hugging Face as JSON. Nothing in the file is \
             executed. What has no equivalent is a comment with the reason",
        )
        .arg(positional("FILE", "The file"))
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("TRAINER")
                .value_parser(parser.try_map(origin))
                .help("The trainer that the file is for. If not given: by its ending, .py, .toml or .json; else megatron"),
        )
        .arg(
            Arg::new("ranks")
                .long("ranks")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..=1 << 17))
                .help("Ranks of the run, for batch sizes that count each rank. If not given: those that the script starts or a job's degrees say, or 1"),
        )
}

pub(super) fn request(matches: &ArgMatches) -> ImportRequest {
    ImportRequest {
        file: text(matches, "FILE").unwrap_or_default().into(),
        from: matches.get_one("from").copied(),
        ranks: matches.get_one::<u32>("ranks").map(|ranks| *ranks as usize),
    }
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
            (imported, ranks, trainer.name())
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
