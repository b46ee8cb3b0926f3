//! The vocabulary of the data of a run, before they are opened.

use common::UserError;

use crate::config::DataConfig;
use crate::found::{Found, expanded, found};
use crate::splits::Purpose;
use crate::text::records::Records;
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer_copy::TokenizerCopy;

/// The size of the vocabulary of the tokenizer of `data.path`, and the name of that tokenizer: `data.tokenizer`, or else
/// the one that token files name. `None` for bytes, and for token files that name none.
///
/// # Errors
/// A tokenizer or a path that cannot be read.
pub fn vocabulary(data: &DataConfig) -> Result<Option<(usize, String)>, UserError> {
    if data.tokenizer != "byte" {
        let tokenizer = Tokenizer::open(&data.tokenizer, data.end_of_text.as_deref())?;
        return Ok(Some((tokenizer.vocab(), data.tokenizer.clone())));
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
