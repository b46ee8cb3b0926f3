//! The vocabulary of a run's data, before the data are opened.

use std::ops::Range;

use common::UserError;

use crate::config::DataConfig;
use crate::found::{Found, expanded, found};
use crate::splits::Purpose;
use crate::text::conversation::{ChatTemplate, WithMarkers, markers};
use crate::text::files::Records;
use crate::text::tokenizer::{Tokenizer, TokenizerCopy};

/// The tokenizer of `data.tokenizer`, and what `data.add_special_tokens` adds to the tokenizer.
pub(crate) struct Configured {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) new_tokens: Range<usize>,
    /// A line about new tokens.
    pub(crate) line: Option<String>,
}

impl Configured {
    /// Opens the tokenizer, and adds the tokens.
    ///
    /// # Errors
    /// A tokenizer or a chat template that cannot be read; a tokenizer that takes no tokens.
    pub(crate) fn open(data: &DataConfig) -> Result<Configured, UserError> {
        let (name, template) = (&data.tokenizer, data.chat_template.as_deref());
        let tokenizer = Tokenizer::open(name, data.end_of_text.as_deref())?;
        if !data.add_special_tokens {
            return Ok(Configured { tokenizer, new_tokens: 0..0, line: None });
        }
        let (template, _) = ChatTemplate::to_train(template, name, &tokenizer)?;
        let WithMarkers { tokenizer, new_tokens, line } = markers::add(&template, name, tokenizer)?;
        Ok(Configured { tokenizer, new_tokens, line: Some(line) })
    }
}

/// The tokens that `data.add_special_tokens` adds to the tokenizer.
///
/// # Errors
/// A tokenizer or a chat template that cannot be read.
pub fn new_tokens(data: &DataConfig) -> Result<Range<usize>, UserError> {
    if data.add_special_tokens { Ok(Configured::open(data)?.new_tokens) } else { Ok(0..0) }
}

/// The size of the vocabulary of the tokenizer of `data.path`, and the name of that tokenizer: `data.tokenizer`, or else
/// the one that token files name. `None` for bytes, and for token files that name none.
///
/// # Errors
/// A tokenizer or a path that cannot be read.
pub fn vocabulary(data: &DataConfig) -> Result<Option<(usize, String)>, UserError> {
    if data.tokenizer != "byte" {
        let Configured { tokenizer, new_tokens, .. } = Configured::open(data)?;
        let added = if new_tokens.is_empty() { String::new() } else { format!(", {} of them new", new_tokens.len()) };
        return Ok(Some((tokenizer.vocab(), data.tokenizer.clone() + &added)));
    }
    let key = "data.path";
    let Some(paths) = &data.path else { return Ok(None) };
    for (_, paths) in paths.datasets(key)? {
        for path in expanded(key, &paths)? {
            let Ok(Found::Tokens(bins)) = found(key, &path, Records::Documents(&data.text_key), Purpose::Train) else {
                continue;
            };
            let folder = bins.files.first().and_then(|bin| bin.parent());
            // All data of a run have tokens of one tokenizer.
            if let Some(copy) = folder.map(TokenizerCopy::read).transpose()?.flatten() {
                return Ok(Some((copy.open(None)?.vocab(), path)));
            }
        }
    }
    Ok(None)
}
