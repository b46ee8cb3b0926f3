//! `trainer tokenizer train`: makes a tokenizer of text.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use data::TokenizerRequest;

use super::args::{filled, path, whole};
use super::interruption::interruption;
use super::tokenize::TextKey;
use trainer::error::RunError;

/// The flags of `trainer tokenizer train`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// Files of text, JSON lines or Parquet, or folders of them.
    #[arg(long, value_name = "FILES", action = ArgAction::Set, num_args = 1.., required = true, value_parser = path())]
    input: Vec<PathBuf>,
    /// Number of tokens: 256 bytes, the special tokens, and the pairs that occur most often.
    #[arg(long, value_name = "N", value_parser = whole(..))]
    vocab_size: usize,
    /// The tokenizer.json to write. It must not exist.
    #[arg(long, value_name = "FILE", value_parser = path())]
    output: PathBuf,
    /// Special tokens beside <|endoftext|>, which ends a document; such as "<|im_start|>" "<|im_end|>".
    #[arg(long, value_name = "TOKEN", action = ArgAction::Set, num_args = 1.., value_parser = filled())]
    special: Vec<String>,
    #[command(flatten)]
    text: TextKey,
}

impl From<Flags> for TokenizerRequest {
    fn from(flags: Flags) -> TokenizerRequest {
        let Flags { input: files, vocab_size, output, special, text: TextKey { text_key } } = flags;
        TokenizerRequest { files, text_key, vocab_size, special, output }
    }
}

/// Makes the tokenizer; returns a summary.
///
/// # Errors
/// Input that is wrong or cannot be read, a file that cannot be written.
pub(super) fn run(request: &TokenizerRequest) -> Result<String, RunError> {
    let stop = interruption()?;
    Ok(data::train_tokenizer(request, &stop)?)
}
