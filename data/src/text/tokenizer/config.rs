//! Files of a tokenizer's folder beside `tokenizer.json`, and limits for reading all such files.

use std::io::ErrorKind;
use std::path::Path;

use common::UserError;
use common::files::read_text;

use crate::text::copied_file::CopiedFile;

/// The largest tokenizer.json that is read, in bytes. Those of 256 k tokens have about 35 MB.
pub(crate) const LARGEST: u64 = 128 << 20;

/// The largest other file that is read, in bytes. Some list thousands of added tokens.
pub(crate) const LARGEST_CONFIG: u64 = 16 << 20;

/// GPT-2's token that ends a document.
pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";

/// The `tokenizer_config.json` of a folder; null without the file.
pub(crate) fn read_config(folder: &Path) -> Result<serde_json::Value, UserError> {
    let path = CopiedFile::TokenizerConfig.at(folder);
    let wrong = |problem: String| {
        let what = format!("{} {problem}", path.display());
        UserError::new(what, "it is JSON that save_pretrained wrote", "write the tokenizer again")
    };
    match read_text(&path, LARGEST_CONFIG) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| wrong(format!("is damaged: {error}"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(error) => Err(wrong(format!("cannot be read: {error}"))),
    }
}
