//! The token before a text, in tokenizers whose classes decide on that token: those of `transformers` replace what
//! `tokenizer.json` puts there by their setting `add_bos_token`.

use std::path::Path;

use common::UserError;
use serde_json::Value;

use super::config::read_config;
use crate::text::tokenizer::Tokenizer;

/// Such classes, without `Fast`: name, `add_bos_token` and `bos_token` if the folder does not set them.
const CLASSES: [(&str, bool, &str); 5] = [
    ("LlamaTokenizer", true, "<s>"),
    ("CodeLlamaTokenizer", true, "<s>"),
    ("GemmaTokenizer", true, "<bos>"),
    ("CohereTokenizer", true, "<BOS_TOKEN>"),
    ("GPTNeoXTokenizer", false, "<|endoftext|>"),
];

/// The tokenizer of a folder's `tokenizer.json`, for documents that begin as the folder's `tokenizer_config.json` says.
///
/// # Errors
/// A `tokenizer_config.json` that cannot be read, or one that asks for a token that is none.
pub(crate) fn begun_as_configured(tokenizer: Tokenizer, folder: &Path) -> Result<Tokenizer, UserError> {
    let config = read_config(folder)?;
    let class = config["tokenizer_class"].as_str().map_or("", |class| class.trim_end_matches("Fast"));
    let Some((_, adds, begin)) = CLASSES.into_iter().find(|(name, ..)| *name == class) else { return Ok(tokenizer) };
    let asked = config["add_bos_token"].as_bool();
    if !asked.unwrap_or(adds) {
        return Ok(tokenizer.beginning_with(None));
    }
    let begin = match &config["bos_token"] {
        Value::Null => begin,
        Value::String(token) => token,
        token => token["content"].as_str().unwrap_or(begin),
    };
    match tokenizer.has_token(begin) {
        true => Ok(tokenizer.beginning_with(Some(begin))),
        // Only the class's own choice names it.
        false if asked.is_none() => Ok(tokenizer),
        false => Err(UserError::new(
            format!(
                "{}: add_bos_token is true, and bos_token `{begin}` is no token",
                folder.join("tokenizer_config.json").display()
            ),
            "a token of the tokenizer begins each text",
            "set add_bos_token to false there, or bos_token to a token",
        )),
    }
}
