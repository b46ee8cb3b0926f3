//! All data of a run have tokens of one tokenizer.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use common::UserError;

use crate::text::tokenizer::TokenizerCopy;

/// The tokenizer of a run's data, as far as the data tell.
#[derive(Default)]
pub(crate) struct OneTokenizer {
    /// The tokenizer, after the name of the data that gave the tokenizer first. Messages use this name.
    known: Option<(String, TokenizerCopy)>,
    /// Folders that were looked at.
    seen: HashSet<PathBuf>,
}

impl OneTokenizer {
    /// Adds the tokenizer named in the folder of a token file, if there is one.
    ///
    /// # Errors
    /// It is another tokenizer than that of other data; the folder's copy is damaged.
    pub(crate) fn add_folder_of(&mut self, bin: &Path) -> Result<(), UserError> {
        let folder = bin.parent().unwrap_or(Path::new(""));
        if !self.seen.insert(folder.into()) {
            return Ok(());
        }
        TokenizerCopy::read(folder)?.map_or(Ok(()), |copy| self.add(&bin.display().to_string(), copy))
    }

    /// Adds the tokenizer of `name`.
    ///
    /// # Errors
    /// It is another one than that of other data.
    pub(crate) fn add(&mut self, name: &str, tokenizer: TokenizerCopy) -> Result<(), UserError> {
        match &self.known {
            Some((first, known)) if *known != tokenizer => Err(UserError::new(
                format!("{first} has tokens of {}, {name} of {}", known.describe(), tokenizer.describe()),
                "all data of a run have tokens of one tokenizer",
                "tokenize them again, with one tokenizer; text is tokenized with the one that --tokenizer names",
            )),
            Some(_) => Ok(()),
            None => {
                self.known = Some((name.into(), tokenizer));
                Ok(())
            }
        }
    }

    /// Adds the tokenizer that the user names for data that are tokens already. If the data name their tokenizer too,
    /// the beginnings of documents are as they say.
    ///
    /// # Errors
    /// It is another one than that of the data.
    pub(crate) fn add_of_user(&mut self, name: &str, tokenizer: TokenizerCopy) -> Result<(), UserError> {
        let tokenizer = match &self.known {
            Some((_, known)) => tokenizer.beginning_as(known),
            None => tokenizer,
        };
        self.add(name, tokenizer)
    }

    /// The tokenizer; `None` if no data name one.
    pub(crate) fn known(self) -> Option<TokenizerCopy> {
        self.known.map(|(_, tokenizer)| tokenizer)
    }
}
