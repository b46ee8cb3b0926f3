//! `trainer data inspect`: shows the contents of data.

use clap::Args;
use clap::builder::PossibleValuesParser;
use common::Choice;
use data::{InspectRequest, RawTokens, RecordKind};

use super::args::filled;
use super::interruption::interruption;
use super::tokenize::TextKey;
use trainer::checkpoint::named_tokenizer;
use trainer::error::RunError;

/// The flags of `trainer data inspect`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// byte, a Hugging Face tokenizer.json, or a folder with one. If not given: the one that token files remember, and byte
    /// for text.
    #[arg(long, value_name = "TOKENIZER", value_parser = filled())]
    tokenizer: Option<String>,
    /// Token that ends a document. If not given: that of the token files, or the first that the tokenizer has of the usual
    /// names.
    #[arg(long, value_name = "TOKEN", value_parser = filled())]
    end_of_text: Option<String>,
    #[command(flatten)]
    text: TextKey,
    /// Type of the tokens in a .bin without header or .idx; u16 for nanoGPT's.
    #[arg(long, value_name = "TYPE", default_value = RawTokens::None.word())]
    #[arg(value_parser = PossibleValuesParser::new(RawTokens::WORDS))]
    raw_tokens: String,
    /// The data are conversations, as with --sft in training: shows which tokens the loss is on.
    #[arg(long, group = "answers")]
    sft: bool,
    /// The data are pairs of answers, as with --dpo in training.
    #[arg(long, group = "answers")]
    dpo: bool,
    /// The data are answers with a label, as with --kto in training.
    #[arg(long, group = "answers")]
    kto: bool,
    /// chatml, llama3, gemma, mistral, or a file with a chat template. If not given: that of the tokenizer's folder, or the
    /// built-in one of its family.
    #[arg(long, value_name = "TEMPLATE", value_parser = filled(), requires = "answers")]
    chat_template: Option<String>,
    /// Adds the markers of the chat template to the tokenizer, as in training.
    #[arg(long, requires = "answers")]
    add_special_tokens: bool,
    /// Documents or conversations of each path whose beginning is shown.
    #[arg(long, value_name = "N", default_value = "3")]
    samples: u16,
    /// What --data-path takes: files or folders of text or tokens.
    #[arg(value_name = "PATH", num_args = 1.., required = true, value_parser = filled())]
    paths: Vec<String>,
}

impl From<Flags> for InspectRequest {
    fn from(flags: Flags) -> InspectRequest {
        InspectRequest {
            paths: flags.paths,
            tokenizer: flags.tokenizer.as_deref().map(named_tokenizer),
            end_of_text: flags.end_of_text,
            text_key: flags.text.text_key,
            raw_tokens: RawTokens::from_word(&flags.raw_tokens).unwrap_or(RawTokens::None),
            kind: match () {
                () if flags.dpo => RecordKind::Pairs,
                () if flags.kto => RecordKind::Labelled,
                () if flags.sft => RecordKind::Conversations,
                () => RecordKind::Documents,
            },
            chat_template: flags.chat_template,
            add_special_tokens: flags.add_special_tokens,
            samples: flags.samples.into(),
        }
    }
}

/// Returns the contents of the data in words.
///
/// # Errors
/// Data that cannot be read, or hold nothing.
pub(super) fn run(request: &InspectRequest) -> Result<String, RunError> {
    let stop = interruption()?;
    Ok(data::inspect(request, &stop)?.trim_end().into())
}
