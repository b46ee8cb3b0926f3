//! `trainer convert`: weights to and from Hugging Face.

use std::path::PathBuf;

use clap::Args;
use common::Mistakes;

use super::args::{MODEL_FOLDER, path};
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

/// The flags of `trainer convert`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// Write a model that transformers loads, or the adapters alone as PEFT loads them.
    #[arg(long, value_name = "to", value_parser = ["hf", "peft"], conflicts_with = "from")]
    to: Option<String>,
    /// Read a model that transformers saved.
    #[arg(long, value_name = "from", value_parser = ["hf"], required_unless_present = "to")]
    from: Option<String>,
    /// Type of the weights that --to writes [default: f32].
    #[arg(long, value_name = "dtype", value_parser = ["f32", "bf16", "f16"])]
    dtype: Option<String>,
    #[arg(value_name = "SOURCE", value_parser = path(), help = MODEL_FOLDER)]
    source: PathBuf,
    /// Folder to write. With --from hf it is one that --init-from takes.
    #[arg(value_name = "TARGET", value_parser = path())]
    target: PathBuf,
}

impl From<Flags> for ConvertRequest {
    fn from(flags: Flags) -> ConvertRequest {
        let dtype = DataType::from_option(flags.dtype.as_deref().unwrap_or("f32"));
        let direction = match flags.to.as_deref() {
            Some("peft") => Direction::ToPeft(dtype),
            Some(_) => Direction::ToHuggingFace(dtype),
            None => Direction::FromHuggingFace,
        };
        ConvertRequest { source: flags.source, target: flags.target, direction }
    }
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
