//! `trainer data inspect`: shows the contents of data.

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use common::Choice;
use data::{InspectRequest, RawTokens, RecordKind, TokenizeError};

use super::args::{text, text_flag};
use super::interruption::interruption;
use super::tokenize::text_key;
use trainer::checkpoint::named_tokenizer;
use trainer::error::RunError;

pub(super) fn command() -> Command {
    let tokenizer = "byte, a Hugging Face tokenizer.json, or a folder with one. If not given: the one that token files \
                     remember, and byte for text";
    let end = "Token that ends a document. If not given: that of the token files, or the first that the tokenizer has of \
               the usual names";
    let template = "chatml, llama3, gemma, mistral, or a file with a chat template. If not given: that of the tokenizer's folder, or the built-in one of its family";
    let inspect = Command::new("inspect")
        .about("Counts documents and tokens, and shows how the first documents begin. Reads all of the data")
        .arg(text_flag("tokenizer", "TOKENIZER", tokenizer))
        .arg(text_flag("end-of-text", "TOKEN", end))
        .arg(text_key())
        .arg(
            text_flag("raw-tokens", "TYPE", "Type of the tokens in a .bin without header or .idx; u16 for nanoGPT's")
                .value_parser(PossibleValuesParser::new(RawTokens::WORDS))
                .default_value(RawTokens::None.word()),
        )
        .arg(
            Arg::new("sft")
                .long("sft")
                .action(ArgAction::SetTrue)
                .help("The data are conversations, as with --sft in training: shows which tokens the loss is on"),
        )
        .arg(
            Arg::new("dpo")
                .long("dpo")
                .action(ArgAction::SetTrue)
                .help("The data are pairs of answers, as with --dpo in training"),
        )
        .arg(
            Arg::new("kto")
                .long("kto")
                .action(ArgAction::SetTrue)
                .help("The data are answers with a label, as with --kto in training"),
        )
        .group(ArgGroup::new("answers").args(["sft", "dpo", "kto"]))
        .arg(text_flag("chat-template", "TEMPLATE", template).requires("answers"))
        .arg(
            Arg::new("add-special-tokens")
                .long("add-special-tokens")
                .action(ArgAction::SetTrue)
                .requires("answers")
                .help("Adds the markers of the chat template to the tokenizer, as in training"),
        )
        .arg(
            Arg::new("samples")
                .long("samples")
                .value_name("N")
                .value_parser(value_parser!(u16))
                .default_value("3")
                .help("Documents or conversations of each path whose beginning is shown"),
        )
        .arg(
            Arg::new("paths")
                .value_name("PATH")
                .value_parser(NonEmptyStringValueParser::new())
                .num_args(1..)
                .required(true)
                .help("What --data-path takes: files or folders of text or tokens"),
        );
    Command::new("data").about("Shows what data hold").subcommand_required(true).subcommand(inspect)
}

pub(super) fn request(matches: &ArgMatches) -> InspectRequest {
    let matches = matches.subcommand_matches("inspect").unwrap_or(matches);
    InspectRequest {
        paths: matches.get_many::<String>("paths").into_iter().flatten().cloned().collect(),
        tokenizer: text(matches, "tokenizer").as_deref().map(named_tokenizer),
        end_of_text: text(matches, "end-of-text"),
        text_key: text(matches, "text-key").unwrap_or_default(),
        raw_tokens: text(matches, "raw-tokens").and_then(|word| RawTokens::from_word(&word)).unwrap_or(RawTokens::None),
        kind: match () {
            () if matches.get_flag("dpo") => RecordKind::Pairs,
            () if matches.get_flag("kto") => RecordKind::Labelled,
            () if matches.get_flag("sft") => RecordKind::Conversations,
            () => RecordKind::Documents,
        },
        chat_template: text(matches, "chat-template"),
        add_special_tokens: matches.get_flag("add-special-tokens"),
        samples: matches.get_one::<u16>("samples").copied().unwrap_or(0).into(),
    }
}

/// Returns the contents of the data in words.
///
/// # Errors
/// Data that cannot be read, or hold nothing.
pub(super) fn run(request: &InspectRequest) -> Result<String, RunError> {
    let stop = interruption().map_err(TokenizeError::from)?;
    Ok(data::inspect(request, &stop)?.trim_end().into())
}
