//! The files of a Hugging Face model beside the weights. They go with the weights through training, so that an export has
//! them again.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use common::files::read_file;
use common::{Choice, UserError};
use data::TokenizerCopy;
use serde_json::Value as Json;

use super::names::Naming;
use crate::checkpoint::{KeptFile, LARGEST_SOURCE_FILE, SourceFile};
use crate::families::{self, HuggingFace};

/// The files of a Hugging Face model but the weights, unchanged.
pub struct SourceFiles(Vec<KeptFile>);

/// The model that the files of Hugging Face describe.
pub(super) struct SourceModel {
    pub(super) family: &'static HuggingFace,
    /// The model's `config.json`.
    pub(super) config: Json,
}

/// The owner of the tokenizer that belongs to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhoseTokenizer {
    /// That of the model that training began with.
    Source,
    /// The data's tokenizer, if the data name a tokenizer.
    Data,
}

impl SourceFiles {
    /// The files in the folder of a model, Hugging Face's or ours. A folder may have none.
    ///
    /// # Errors
    /// A file that cannot be read; one that is not JSON and is changed by an export.
    pub(super) fn read(folder: &Path, naming: Naming) -> Result<SourceFiles, UserError> {
        match naming {
            Naming::Ours => SourceFiles::read_as(folder, |file| file.word()),
            Naming::Family(_) => SourceFiles::read_as(folder, SourceFile::at_hugging_face),
        }
    }

    /// The model's files, with the files of a folder of adapters over the model. The tokenizer is that of the adapters,
    /// if they have one.
    ///
    /// # Errors
    /// As [`SourceFiles::read`].
    pub(super) fn with_adapters(self, folder: &Path) -> Result<SourceFiles, UserError> {
        let own = SourceFiles::read_as(folder, SourceFile::at_hugging_face)?;
        let has_tokenizer = own.has_tokenizer();
        let is_own = |file: SourceFile| file == SourceFile::Adapters || (has_tokenizer && file.is_of_tokenizer());
        let of_base = self.0.into_iter().filter(|(file, _)| !is_own(*file));
        let files = of_base.chain(own.0.into_iter().filter(|(file, _)| is_own(*file))).collect();
        Ok(SourceFiles(files))
    }

    fn read_as(folder: &Path, name_of: impl Fn(SourceFile) -> &'static str) -> Result<SourceFiles, UserError> {
        let mut files = Vec::new();
        for &file in SourceFile::ALL {
            let name = name_of(file);
            match read_file(&folder.join(name), LARGEST_SOURCE_FILE) {
                Ok(content) => files.push((file, content)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(damaged(folder, name, &format!("cannot be read: {error}"))),
            }
        }
        let files = SourceFiles(files);
        for file in [SourceFile::Generation, SourceFile::TokenizerConfig, SourceFile::Adapters] {
            files.json(file).map_err(|problem| damaged(folder, file.at_hugging_face(), &problem))?;
        }
        Ok(files)
    }

    /// The model's files, with contents.
    pub fn into_files(self) -> Vec<KeptFile> {
        self.0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SourceFile, &[u8])> {
        self.0.iter().map(|(file, content)| (*file, &content[..]))
    }

    pub(super) fn get(&self, wanted: SourceFile) -> Option<&[u8]> {
        self.iter().find(|(file, _)| *file == wanted).map(|(_, content)| content)
    }

    /// The object in one of the files; `None` without the file.
    ///
    /// # Errors
    /// In words, that the file is not a JSON object.
    pub(super) fn json(&self, file: SourceFile) -> Result<Option<Json>, String> {
        let Some(content) = self.get(file) else { return Ok(None) };
        let json: Json = serde_json::from_slice(content).map_err(|error| format!("is not JSON: {error}"))?;
        if json.is_object() { Ok(Some(json)) } else { Err("is not a JSON object".into()) }
    }

    /// The model that the files describe; `None` without `config.json`.
    ///
    /// # Errors
    /// A `config.json` that is wrong. `folder` is that of the files.
    pub(super) fn model(&self, folder: &Path) -> Result<Option<SourceModel>, UserError> {
        let name = SourceFile::Config.word();
        let config = self.json(SourceFile::Config).map_err(|problem| damaged(folder, name, &problem))?;
        let Some(config) = config else { return Ok(None) };
        let (family, _) = families::from_config_json(&config, &folder.join(name).display().to_string())?;
        Ok(Some(SourceModel { family, config }))
    }

    /// The owner of the tokenizer that belongs to a model. It was trained on data of the tokenizer `of_data`, if that
    /// is known.
    pub(super) fn tokenizer_beside(&self, of_data: Option<&TokenizerCopy>) -> WhoseTokenizer {
        match of_data {
            None if self.has_tokenizer() => WhoseTokenizer::Source,
            Some(TokenizerCopy::HuggingFace { json, .. }) if self.has_as_tokenizer(json) => WhoseTokenizer::Source,
            _ => WhoseTokenizer::Data,
        }
    }

    /// Gives the tokenizer new tokens, if `of_data` is the same tokenizer with the new tokens.
    pub fn add_tokens(&mut self, of_data: &TokenizerCopy, new: &Range<usize>) {
        let TokenizerCopy::HuggingFace { json: text, .. } = of_data else { return };
        let Ok(mut before) = serde_json::from_slice::<Json>(text) else { return };
        let all = before["added_tokens"].as_array().cloned().unwrap_or_default();
        let id = |token: &Json| token["id"].as_u64().map(|id| id as usize);
        let is_new = |token: &Json| id(token).is_some_and(|id| new.contains(&id));
        let (added, others): (Vec<Json>, Vec<Json>) = all.into_iter().partition(is_new);
        before["added_tokens"] = others.into();
        if self.json(SourceFile::Tokenizer).ok().flatten() != Some(before) {
            return;
        }
        self.put(SourceFile::Tokenizer, text.to_vec());
        let config = self.json(SourceFile::TokenizerConfig).ok().flatten();
        let is_table = |config: &Json| config.get("added_tokens_decoder").is_none_or(Json::is_object);
        if let Some(mut config) = config.filter(is_table) {
            for mut token in added {
                let Some(id) = token["id"].as_u64() else { continue };
                token.as_object_mut().map(|token| token.remove("id"));
                config["added_tokens_decoder"][id.to_string()] = token;
            }
            self.put(SourceFile::TokenizerConfig, format!("{config:#}\n").into_bytes());
        }
    }

    fn put(&mut self, file: SourceFile, content: Vec<u8>) {
        self.0.retain(|(other, _)| *other != file);
        self.0.push((file, content));
    }

    /// Whether the data have a tokenizer, and another one than the model.
    pub fn differs_from(&self, of_data: Option<&TokenizerCopy>) -> bool {
        of_data.is_some() && self.has_tokenizer() && self.tokenizer_beside(of_data) == WhoseTokenizer::Data
    }

    fn has_tokenizer(&self) -> bool {
        let files = [SourceFile::Tokenizer, SourceFile::Vocabulary, SourceFile::SentencePiece];
        files.into_iter().any(|file| self.get(file).is_some())
    }

    /// Whether `other` is the content of `tokenizer.json`, spaces aside.
    fn has_as_tokenizer(&self, other: &[u8]) -> bool {
        let parsed = |text: &[u8]| serde_json::from_slice::<Json>(text).ok();
        self.get(SourceFile::Tokenizer).is_some_and(|own| own == other || parsed(own) == parsed(other))
    }
}

fn damaged(folder: &Path, name: &str, problem: &str) -> UserError {
    UserError::new(
        format!("{} {problem}", folder.join(name).display()),
        "the files beside a model's weights are those that save_pretrained wrote: an export has them again",
        "get the file again, or remove it",
    )
}
