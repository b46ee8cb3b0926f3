//! `trainer convert`: weights to and from Hugging Face.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use common::Mistakes;

use super::args::{MODEL_FOLDER, positional, text};
use trainer::error::RunError;
use trainer::hf::{self, DataType, Direction};

/// A conversion.
#[derive(Clone, Debug)]
pub struct ConvertRequest {
    /// The folder to read.
    source: PathBuf,
    /// The folder to write.
    target: PathBuf,
    direction: Direction,
}

pub(super) fn command() -> Command {
    let choice = |name: &'static str, words: &[&'static str], help: &'static str| {
        Arg::new(name).long(name).value_parser(words.to_vec()).help(help)
    };
    Command::new("convert")
        .about("Converts weights to and from Hugging Face")
        .arg(
            choice(
                "to",
                &["hf", "peft"],
                "Write a model that transformers loads, or the adapters alone as PEFT loads them",
            )
            .conflicts_with("from"),
        )
        .arg(choice("from", &["hf"], "Read a model that transformers saved").required_unless_present("to"))
        .arg(choice("dtype", &["f32", "bf16", "f16"], "Type of the weights that --to writes [default: f32]"))
        .arg(positional("SOURCE", MODEL_FOLDER))
        .arg(positional("TARGET", "Folder to write. With --from hf it is one that --init-from takes"))
}

pub(super) fn request(matches: &ArgMatches) -> ConvertRequest {
    let folder = |name: &str| PathBuf::from(text(matches, name).unwrap_or_default());
    let dtype = DataType::from_option(&text(matches, "dtype").unwrap_or("f32".into()));
    let direction = match text(matches, "to").as_deref() {
        Some("peft") => Direction::ToPeft(dtype),
        Some(_) => Direction::ToHuggingFace(dtype),
        None => Direction::FromHuggingFace,
    };
    ConvertRequest { source: folder("SOURCE"), target: folder("TARGET"), direction }
}

impl ConvertRequest {
    /// Adds everything that is wrong with the folders to `mistakes`.
    pub(super) fn check(&self, mistakes: &mut Mistakes) {
        hf::check(&self.source, &self.target, self.direction, mistakes);
    }
}

/// Converts; returns a summary.
///
/// # Errors
/// See [`hf::convert`].
pub(super) fn run(request: &ConvertRequest) -> Result<String, RunError> {
    hf::convert(&request.source, &request.target, request.direction)
}
