//! A folder's note on the meaning of the folder's tokens: `tokens.json`, and a copy of the tokenizer beside it.
//! `trainer tokenize` writes them with its token files, and a run writes them into its checkpoints.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::UserError;
use common::files::read_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::config::LARGEST;
use crate::text::copied_file::CopiedFile;
use crate::text::tokenizer::Tokenizer;

/// The largest [`CopiedFile::Tokens`] that is read, in bytes.
const LARGEST_TOKENS_JSON: u64 = 1 << 20;

/// The whole tokenizer that made some tokens, so that the tokens become text when the tokenizer's own files are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerCopy {
    /// One token per byte.
    Bytes,
    /// A Hugging Face tokenizer.
    HuggingFace {
        /// The tokenizer's `tokenizer.json`.
        json: Arc<[u8]>,
        /// The tokens that begin a document. `None` if there are none: the tokenizer has none, or the tokens were made by a
        /// version that left them out.
        begin_of_text: Option<String>,
        /// The token that ends a document.
        end_of_text: String,
    },
}

/// The content of [`CopiedFile::Tokens`].
#[derive(Serialize, Deserialize)]
#[serde(tag = "tokenizer", deny_unknown_fields)]
enum Note {
    #[serde(rename = "byte")]
    Bytes {},
    #[serde(rename = "tokenizer.json")]
    HuggingFace {
        sha256: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        begin_of_text: Option<String>,
        end_of_text: String,
    },
}

impl TokenizerCopy {
    /// A copy of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> TokenizerCopy {
        match tokenizer.json() {
            None => TokenizerCopy::Bytes,
            Some((json, end)) => TokenizerCopy::HuggingFace {
                json: json.clone(),
                begin_of_text: tokenizer.begin_as_text(),
                end_of_text: end.into(),
            },
        }
    }

    /// The copy in a folder. `None` if the folder has no [`CopiedFile::Tokens`].
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn read(folder: &Path) -> Result<Option<TokenizerCopy>, UserError> {
        let at = CopiedFile::Tokens.at(folder);
        let wrong = |path: &Path, problem: String| {
            let what = format!("{} {problem}", path.display());
            let rule = "tokens.json and tokenizer.json of a folder are those that were written with its tokens";
            UserError::new(what, rule, "write the folder again, or remove tokens.json and name the tokenizer")
        };
        let note = match read_file(&at, LARGEST_TOKENS_JSON) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| wrong(&at, format!("is damaged: {error}")))?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(&at, format!("cannot be read: {error}"))),
        };
        let Note::HuggingFace { sha256, begin_of_text, end_of_text } = note else {
            return Ok(Some(TokenizerCopy::Bytes));
        };
        let at = CopiedFile::Tokenizer.at(folder);
        let json = read_file(&at, LARGEST).map_err(|error| wrong(&at, format!("cannot be read: {error}")))?;
        if hash(&json) != sha256 {
            return Err(wrong(&at, "differs from its SHA-256 in tokens.json".into()));
        }
        Ok(Some(TokenizerCopy::HuggingFace { json: json.into(), begin_of_text, end_of_text }))
    }

    /// The files of the copy: names and contents.
    pub fn files(&self) -> Vec<(CopiedFile, Vec<u8>)> {
        let (note, json) = match self {
            TokenizerCopy::Bytes => (Note::Bytes {}, None),
            TokenizerCopy::HuggingFace { json, begin_of_text, end_of_text } => {
                let (begin_of_text, end_of_text) = (begin_of_text.clone(), end_of_text.clone());
                (Note::HuggingFace { sha256: hash(json), begin_of_text, end_of_text }, Some(json.to_vec()))
            }
        };
        let note = serde_json::to_string_pretty(&note).unwrap_or_else(|error| unreachable!("text is JSON: {error}"));
        [(CopiedFile::Tokens, Some(format!("{note}\n").into_bytes())), (CopiedFile::Tokenizer, json)]
            .into_iter()
            .filter_map(|(name, content)| Some((name, content?)))
            .collect()
    }

    /// The tokenizer, for messages.
    pub fn describe(&self) -> String {
        match self {
            TokenizerCopy::Bytes => "bytes".into(),
            TokenizerCopy::HuggingFace { json, begin_of_text, end_of_text } => {
                let begin = begin_of_text.as_ref().map(|begin| format!("begin with {begin} and ")).unwrap_or_default();
                format!(
                    "the tokenizer.json with SHA-256 {}..., documents {begin}end with {end_of_text}",
                    &hash(json)[..8]
                )
            }
        }
    }

    /// The tokenizer. `end` names the token that ends a document, if it is not the copy's.
    ///
    /// # Errors
    /// The copy is not a tokenizer that this build reads, or does not have the token `end`.
    pub fn open(&self, end: Option<&str>) -> Result<Tokenizer, UserError> {
        match self {
            TokenizerCopy::Bytes => Tokenizer::open("byte", end),
            TokenizerCopy::HuggingFace { json, begin_of_text, end_of_text } => {
                let end = end.unwrap_or(end_of_text);
                let tokenizer = Tokenizer::from_json(json.clone(), "its tokenizer.json", Some(end))?;
                Ok(tokenizer.beginning_with(begin_of_text.as_deref()))
            }
        }
    }

    /// The same tokenizer, for documents that begin as with `other`.
    pub(crate) fn beginning_as(self, other: &TokenizerCopy) -> TokenizerCopy {
        match (self, other) {
            (
                TokenizerCopy::HuggingFace { json, end_of_text, .. },
                TokenizerCopy::HuggingFace { begin_of_text, .. },
            ) => TokenizerCopy::HuggingFace { json, begin_of_text: begin_of_text.clone(), end_of_text },
            (copy, _) => copy,
        }
    }
}

/// SHA-256 in hexadecimal.
fn hash(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_back_and_a_changed_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let write = |copy: &TokenizerCopy| {
            for (name, content) in copy.files() {
                std::fs::write(name.at(folder.path()), content).unwrap();
            }
        };
        assert_eq!(TokenizerCopy::read(folder.path()), Ok(None));
        let theirs = |begin_of_text| TokenizerCopy::HuggingFace {
            json: Arc::from(*b"{}"),
            begin_of_text,
            end_of_text: "</s>".into(),
        };
        for copy in [TokenizerCopy::Bytes, theirs(None), theirs(Some("<s>".into()))] {
            write(&copy);
            assert_eq!(TokenizerCopy::read(folder.path()), Ok(Some(copy)));
        }
        std::fs::write(CopiedFile::Tokenizer.at(folder.path()), "{ }").unwrap();
        let problem = TokenizerCopy::read(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("tokenizer.json differs from its SHA-256"), "{problem}");
        std::fs::remove_file(CopiedFile::Tokenizer.at(folder.path())).unwrap();
        assert!(TokenizerCopy::read(folder.path()).unwrap_err().to_string().contains("tokenizer.json cannot be read"));
        for damaged in ["", "{}", "{\"tokenizer\": \"other\"}"] {
            std::fs::write(CopiedFile::Tokens.at(folder.path()), damaged).unwrap();
            let problem = TokenizerCopy::read(folder.path()).unwrap_err().to_string();
            assert!(problem.contains("tokens.json is damaged"), "{problem}");
        }
    }
}
