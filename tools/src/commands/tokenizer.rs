//! `trainer tokenizer train`: makes a tokenizer of text.

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use data::{TokenizeError, TokenizerRequest};

use super::args::{text, text_flag};
use super::interruption::interruption;
use super::tokenize::text_key;
use trainer::error::RunError;

pub(super) fn command() -> Command {
    let texts = |arg: Arg| arg.value_parser(NonEmptyStringValueParser::new()).num_args(1..);
    let train = Command::new("train")
        .about("Makes a byte-level BPE of text. The same text gives the same file")
        .arg(
            texts(Arg::new("input").long("input").value_name("FILES").required(true))
                .help("Files of text, JSON lines or Parquet, or folders of them"),
        )
        .arg(
            Arg::new("vocab-size")
                .long("vocab-size")
                .value_name("N")
                .required(true)
                .value_parser(value_parser!(u32))
                .help("Number of tokens: 256 bytes, the special tokens, and the pairs that occur most often"),
        )
        .arg(text_flag("output", "FILE", "The tokenizer.json to write. It must not exist").required(true))
        .arg(texts(Arg::new("special").long("special").value_name("TOKEN")).help(
            "Special tokens beside <|endoftext|>, which ends a document; such as \"<|im_start|>\" \"<|im_end|>\"",
        ))
        .arg(text_key());
    Command::new("tokenizer").about("Makes tokenizers").subcommand_required(true).subcommand(train)
}

pub(super) fn request(matches: &ArgMatches) -> TokenizerRequest {
    let matches = matches.subcommand_matches("train").unwrap_or(matches);
    let texts = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned();
    TokenizerRequest {
        files: texts("input").map(Into::into).collect(),
        text_key: text(matches, "text-key").unwrap_or_default(),
        vocab_size: matches.get_one::<u32>("vocab-size").map_or(0, |&size| size as usize),
        special: texts("special").collect(),
        output: text(matches, "output").unwrap_or_default().into(),
    }
}

/// Makes the tokenizer; returns a summary.
///
/// # Errors
/// Input that is wrong or cannot be read, a file that cannot be written.
pub(super) fn run(request: &TokenizerRequest) -> Result<String, RunError> {
    let stop = interruption().map_err(TokenizeError::from)?;
    Ok(data::train_tokenizer(request, &stop)?)
}
