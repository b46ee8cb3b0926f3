//! The markers that a chat template writes around messages, such as `<|im_end|>`. A model learns to end an answer with
//! a marker if that is a token. A tokenizer cuts other markers in pieces, and nothing stops at these.

use std::ops::Range;

use common::UserError;
use fancy_regex::Regex;

use super::built_in_templates::BuiltIn;
use super::template::ChatTemplate;
use crate::text::tokenizer::Tokenizer;

/// A tokenizer that has the markers of a template as tokens.
pub(crate) struct WithMarkers {
    pub(crate) tokenizer: Tokenizer,
    /// The tokens that the tokenizer did not have before.
    pub(crate) new_tokens: Range<usize>,
    /// A line about the new tokens.
    pub(crate) line: String,
}

/// The markers of a template that are no tokens of a tokenizer. Bytes have no tokens but bytes.
fn missing(template: &ChatTemplate, tokenizer: &Tokenizer) -> Vec<String> {
    let is_missing = |marker: &String| tokenizer.added_token(marker).is_none();
    match tokenizer {
        Tokenizer::Bytes => Vec::new(),
        Tokenizer::HuggingFace(_) => markers(template).into_iter().filter(is_missing).collect(),
    }
}

/// The markers of a template: of a built-in one those of its family, of others all of the form `<|...|>` in a
/// conversation.
fn markers(template: &ChatTemplate) -> Vec<String> {
    if let Some(built_in) = BuiltIn::of_source(template.source()) {
        return built_in.markers.iter().map(|marker| marker.to_string()).collect();
    }
    let Ok(pattern) = Regex::new(r"<\|[^<>|\s]+\|>") else { unreachable!("it is a pattern") };
    let text = template.sample();
    let mut markers: Vec<String> = Vec::new();
    for marker in pattern.find_iter(&text).flatten() {
        if !markers.iter().any(|known| known == marker.as_str()) {
            markers.push(marker.as_str().into());
        }
    }
    markers
}

/// Compares the markers of a template with the tokenizer that was opened as `opened`. Returns a line about those that
/// are read in pieces, if the model can end its answers without them.
///
/// # Errors
/// The template ends an answer with a marker that is no token, or is one that is built in for other tokenizers.
pub(crate) fn check(template: &ChatTemplate, opened: &str, tokenizer: &Tokenizer) -> Result<Option<String>, UserError> {
    let missing = missing(template, tokenizer);
    let Some(first) = missing.first() else { return Ok(None) };
    let (listed, end) = (missing.join(" "), template.end_of_answer());
    let ends = missing.iter().find(|marker| end.contains(*marker));
    let built_in = BuiltIn::of_source(template.source());
    if built_in.is_none() && ends.is_none() {
        return Ok(Some(format!(
            "the chat template has {listed}, no tokens of {opened}: they are read in pieces, as text \
             (--add-special-tokens adds them)"
        )));
    }
    let name = built_in.map_or("the chat template".into(), |built_in| format!("the chat template {}", built_in.name));
    let other = BuiltIn::of(tokenizer).filter(|of| built_in.is_none_or(|built_in| built_in.name != of.name));
    let other = other.map_or("name a template of that tokenizer (--chat-template FILE)".into(), |of| {
        format!("take its own template (--chat-template {})", of.name)
    });
    Err(UserError::new(
        format!("{name} has {listed}, no tokens of {opened}"),
        format!(
            "markers are tokens: a model neither reads {0} in pieces as one, nor stops after it",
            ends.unwrap_or(first)
        ),
        format!("add them (--add-special-tokens), or {other}"),
    ))
}

/// The tokenizer with the markers of a template as special tokens.
///
/// # Errors
/// A tokenizer of bytes; one that takes no more tokens.
pub(crate) fn add(template: &ChatTemplate, opened: &str, tokenizer: Tokenizer) -> Result<WithMarkers, UserError> {
    let before = tokenizer.vocab();
    if matches!(tokenizer, Tokenizer::Bytes) {
        return Err(UserError::new(
            "data.add_special_tokens with the byte tokenizer",
            "its tokens are the 256 bytes",
            "name a tokenizer.json (--tokenizer), or leave --add-special-tokens out",
        ));
    }
    let missing = missing(template, &tokenizer);
    let tokenizer = if missing.is_empty() { tokenizer } else { tokenizer.with_special_tokens(&missing, opened)? };
    let id = |marker: &String| format!("{marker} ({})", tokenizer.added_token(marker).unwrap_or_default());
    let line = match missing.is_empty() {
        true => format!("data.add_special_tokens adds none: all markers of the chat template are tokens of {opened}"),
        false => format!(
            "{opened} gets the special tokens {}. Their rows begin as the mean of those of all other tokens, if \
             training starts from a model (--add-special-tokens)",
            missing.iter().map(id).collect::<Vec<_>>().join(", ")
        ),
    };
    Ok(WithMarkers { new_tokens: before..tokenizer.vocab(), tokenizer, line })
}
