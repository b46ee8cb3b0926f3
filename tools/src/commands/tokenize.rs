//! `trainer tokenize`: makes token files of text.

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use data::{TokenizeError, TokenizeRequest, llmc};

use super::args::{text, text_flag};
use super::interruption::interruption;
use trainer::checkpoint::named_tokenizer;
use trainer::error::RunError;

pub(super) fn command() -> Command {
    Command::new("tokenize")
        .about("Makes token files from text, for --data-path (llm.c's format)")
        .arg(
            text_flag("tokenizer", "TOKENIZER", "byte, a Hugging Face tokenizer.json, or a folder with one")
                .default_value("byte"),
        )
        .arg(text_flag("output", "DIR", "Folder to write. It must not exist, or be empty").required(true))
        .arg(text_flag("end-of-text", "TOKEN", "Token that ends a document. If not given: the first that the tokenizer has of the usual names"))
        .arg(text_key())
        .arg(
            text_flag("shard-tokens", "COUNT", "Largest number of tokens in a file")
                .default_value("100000000")
                .value_parser(value_parser!(u64).range(1..=llmc::MAX_TOKENS)),
        )
        .arg(
            Arg::new("files")
                .value_name("FILES")
                .value_parser(NonEmptyStringValueParser::new())
                .num_args(1..)
                .required(true)
                .help(
                    "Files of text, JSON lines or Parquet, or folders of them. A file of text is one document; in the others \
                     each line or row is one",
                ),
        )
}

/// The flag for the place of the text in records.
pub(super) fn text_key() -> Arg {
    text_flag("text-key", "KEY", "Key of the text in JSON lines, or its column in Parquet files")
        .aliases(["json-key", "json-keys"])
        .default_value("text")
}

pub(super) fn request(matches: &ArgMatches) -> TokenizeRequest {
    TokenizeRequest {
        tokenizer: named_tokenizer(&text(matches, "tokenizer").unwrap_or_default()),
        end_of_text: text(matches, "end-of-text"),
        text_key: text(matches, "text-key").unwrap_or_default(),
        output: text(matches, "output").unwrap_or_default().into(),
        shard_tokens: matches.get_one("shard-tokens").copied().unwrap_or(1),
        files: matches.get_many::<String>("files").into_iter().flatten().map(Into::into).collect(),
    }
}

/// Makes the token files; returns a summary.
///
/// # Errors
/// Input that is wrong or cannot be read, files that cannot be written.
pub(super) fn run(request: &TokenizeRequest) -> Result<String, RunError> {
    let stop = interruption().map_err(TokenizeError::from)?;
    Ok(data::tokenize(request, &stop)?)
}
