//! `trainer tokenize`: makes token files of text.

use std::path::PathBuf;

use clap::{Args, value_parser};
use data::{TokenizeRequest, llmc};

use super::args::{filled, path};
use super::interruption::interruption;
use trainer::checkpoint::named_tokenizer;
use trainer::error::RunError;

/// The flags of `trainer tokenize`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// byte, a Hugging Face tokenizer.json, or a folder with one.
    #[arg(long, value_name = "TOKENIZER", default_value = "byte", value_parser = filled())]
    tokenizer: String,
    /// Folder to write. It must not exist, or be empty.
    #[arg(long, value_name = "DIR", value_parser = path())]
    output: PathBuf,
    /// Token that ends a document. If not given: the first that the tokenizer has of the usual names.
    #[arg(long, value_name = "TOKEN", value_parser = filled())]
    end_of_text: Option<String>,
    #[command(flatten)]
    text: TextKey,
    /// Largest number of tokens in a file.
    #[arg(long, value_name = "COUNT", default_value = "100000000")]
    #[arg(value_parser = value_parser!(u64).range(1..=llmc::MAX_TOKENS))]
    shard_tokens: u64,
    /// Files of text, JSON lines or Parquet, or folders of them. A file of text is one document; in the others each line or
    /// row is one.
    #[arg(value_name = "FILES", num_args = 1.., required = true, value_parser = path())]
    files: Vec<PathBuf>,
}

/// The flag for the place of the text in records.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct TextKey {
    /// Key of the text in JSON lines, or its column in Parquet files.
    #[arg(long, aliases = ["json-key", "json-keys"], value_name = "KEY", default_value = "text", value_parser = filled())]
    pub(super) text_key: String,
}

impl From<Flags> for TokenizeRequest {
    fn from(flags: Flags) -> TokenizeRequest {
        let Flags { tokenizer, output, end_of_text, text: TextKey { text_key }, shard_tokens, files } = flags;
        TokenizeRequest { tokenizer: named_tokenizer(&tokenizer), end_of_text, text_key, output, shard_tokens, files }
    }
}

/// Makes the token files; returns a summary.
///
/// # Errors
/// Input that is wrong or cannot be read, files that cannot be written.
pub(super) fn run(request: &TokenizeRequest) -> Result<String, RunError> {
    let stop = interruption()?;
    Ok(data::tokenize(request, &stop)?)
}
