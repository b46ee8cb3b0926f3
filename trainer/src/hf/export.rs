//! The files beside the weights of an export: those of the model that training began with, adapted to the changes that
//! training made to the model.

use std::path::Path;

use common::terminal::warn;
use common::{Choice, UserError};
use data::{ChatTemplate, CopiedFile, Tokenizer, TokenizerCopy};
use engine::model::GptShape;
use serde_json::{Map, Value as Json, json};

use super::names::{Naming, entries};
use super::source::{SourceFiles, SourceModel, WhoseTokenizer};
use super::write::not_written;
use crate::checkpoint::{DataType, SourceFile};
use crate::config::ConfigSources;
use crate::config::plan::{ModelPlan, model_plan};
use crate::error::RunError;
use crate::families::{self, FURTHER_TOKENS, HuggingFace};

/// The keys of the tokens that begin, end and fill a text.
const TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// A model to be exported, without the weights.
pub(super) struct Export<'e> {
    pub(super) target: &'e Path,
    pub(super) shape: &'e GptShape,
    pub(super) family: &'static HuggingFace,
    pub(super) dtype: DataType,
    /// The files of the model that training began with, and that model, if there was one.
    pub(super) source: &'e SourceFiles,
    pub(super) model: Option<&'e SourceModel>,
    /// The tokenizer of the data.
    pub(super) tokenizer: Option<&'e Tokenizer>,
    /// The chat template of the data.
    pub(super) template: Option<&'e ChatTemplate>,
    /// Whether the model was trained on conversations.
    pub(super) learned_answers: bool,
}

impl Export<'_> {
    /// Writes the files, with the given `config.json`, and tells of each file that differs from that of the model that
    /// training began with.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn write(&self, config: Json) -> Result<(), RunError> {
        let copy = self.tokenizer.map(TokenizerCopy::of);
        let (whose, differs) = (self.source.tokenizer_beside(copy.as_ref()), self.source.differs_from(copy.as_ref()));
        if differs {
            notice(
                "the tokenizer is that of the training data. It differs from that of the model that training began with",
            );
        }
        self.write_configs(config, differs)?;
        if CopiedFile::Tokenizer.at(self.target).exists() {
            notice(&format!("{} has a tokenizer.json, which stays", self.target.display()));
            return Ok(());
        }
        if whose == WhoseTokenizer::Source {
            self.write_source_tokenizer()?;
        }
        for (file, content) in copy.map_or(Vec::new(), |copy| copy.files()) {
            self.put(file.word(), &content)?;
        }
        match (self.template, whose) {
            (Some(template), WhoseTokenizer::Source) => self.replace_template(template),
            (_, WhoseTokenizer::Source) => Ok(()),
            (_, WhoseTokenizer::Data) => self.write_tokenizer_config(),
        }
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), RunError> {
        let path = self.target.join(name);
        std::fs::write(&path, content).map_err(not_written(&path))
    }

    fn put_json(&self, name: &str, content: &Json) -> Result<(), RunError> {
        self.put(name, format!("{content:#}\n").as_bytes())
    }

    /// Writes a file. If its content is unchanged, it keeps its own bytes.
    fn put_or_keep(&self, file: SourceFile, content: &Json) -> Result<(), RunError> {
        match self.source.get(file) {
            Some(before) if self.source.json(file).as_ref() == Ok(&Some(content.clone())) => {
                self.put(file.at_hugging_face(), before)
            }
            _ => self.put_json(file.at_hugging_face(), content),
        }
    }

    /// `config.json` and `generation_config.json`. `differs`: their tokens are of another tokenizer than that of the data.
    fn write_configs(&self, mut config: Json, differs: bool) -> Result<(), RunError> {
        let generation = self.source.json(SourceFile::Generation).ok().flatten();
        let has_generation = generation.is_some();
        let mut generation = generation.unwrap_or_else(|| json!({}));
        if self.model.is_none() || differs {
            let end = self.tokenizer.map(Tokenizer::end_of_text).filter(|&end| (end as usize) < self.shape.vocab);
            // Without the keys of tokens transformers would take its class's defaults. They may lie beyond the
            // vocabulary.
            for (key, token) in TOKENS.into_iter().zip([None, end, None]) {
                config[key] = json!(token);
                if generation.get(key).is_some() {
                    generation[key] = json!(token);
                }
            }
        }
        let mut ends = tokens(generation.get("eos_token_id").or_else(|| config.get("eos_token_id")));
        if self.learned_answers && self.template.is_some() && self.end_of_answer().is_none() {
            notice(
                "generate does not stop at the end of an answer: the template ends it with no token of the tokenizer",
            );
        }
        let added = self.end_of_answer().filter(|(end, _)| !ends.contains(end));
        if let Some((end, text)) = &added {
            ends.push(*end);
            generation["eos_token_id"] = json!(ends);
            notice(&format!("generation_config.json has {text} in eos_token_id too: it ends the answers of training"));
        }
        if has_generation || added.is_some() {
            self.put_or_keep(SourceFile::Generation, &generation)?;
        }
        self.put_or_keep(SourceFile::Config, &config)
    }

    /// The exported `config.json`, in the form that `transformers` reads: that of the model that training began with, but
    /// for keys that training changed. It describes the model.
    ///
    /// # Errors
    /// A `config.json` that would be read as another model.
    pub(super) fn config(&self) -> Result<Json, UserError> {
        let dtype = ("torch_dtype".to_string(), json!(self.dtype.torch_name()));
        let kind = |family: &HuggingFace| family.model_type;
        let mut config: Json = match self.model {
            Some(model) if kind(model.family) == kind(self.family) => self.changed(model, dtype)?,
            _ => self.new_config(dtype).into(),
        };
        if self.shape.further_tokens.is_some() {
            config[FURTHER_TOKENS] = json!(self.shape.further_blocks().len());
        }
        let read = self.read(&config)?;
        let differing: Vec<String> = self
            .differing(&read)
            .iter()
            .map(|(key, value)| format!("{key} = {value}"))
            .chain(self.tensor(&read))
            .collect();
        if differing.is_empty() { Ok(config) } else { Err(reads_otherwise(self.target, &differing)) }
    }

    /// A `config.json` that has nothing but the tokens of another.
    fn new_config(&self, dtype: (String, Json)) -> Map<String, Json> {
        let mut config = keys(self.family, self.shape);
        config.extend([dtype, ("use_cache".into(), json!(true))]);
        if let Some(model) = self.model {
            let (now, before) = (self.family.model_type, model.family.model_type);
            notice(&format!(
                "config.json is new: the model is of type {now}, the one that training began with {before}"
            ));
            config.extend(TOKENS.iter().filter_map(|key| Some((key.to_string(), model.config.get(*key)?.clone()))));
        }
        config
    }

    /// The `config.json` of the model that training began with, with the changes of training.
    fn changed(&self, model: &SourceModel, dtype: (String, Json)) -> Result<Json, UserError> {
        let mut config = model.config.clone();
        // A shorter context of training leaves the meaning of positions as it is.
        let context = config.get("max_position_embeddings").and_then(Json::as_u64);
        if context.is_some_and(|context| context < self.shape.max_seq_len as u64) {
            config["max_position_embeddings"] = json!(self.shape.max_seq_len);
        }
        // With the new context in it: a reader may derive an absent key from that, such as YaRN's original context.
        let mut changed = self.differing(&self.read(&config)?);
        changed.insert("architectures".into(), keys(self.family, self.shape)["architectures"].clone());
        changed.extend([dtype]);
        if let Json::Object(config) = &mut config {
            if config.remove("quantization_config").is_some() {
                let dtype = self.dtype.torch_name();
                notice(&format!(
                    "the weights are {dtype}: config.json has no more the quantization_config they came with"
                ));
            }
            let written = self.shape.further_blocks().len() as u64;
            let before = config.remove(FURTHER_TOKENS).and_then(|layers| layers.as_u64()).unwrap_or(0);
            if before > written {
                notice(&format!(
                    "config.json has no more {FURTHER_TOKENS} = {before}: the model has {written} such layers"
                ));
            }
            families::change(config, changed);
        }
        Ok(config)
    }

    /// The model that a `config.json` describes.
    ///
    /// # Errors
    /// It describes none.
    fn read(&self, config: &Json) -> Result<GptShape, UserError> {
        let origin = self.target.join("config.json").display().to_string();
        let (_, options) = families::from_config_json(config, &origin)?;
        let mut sources = ConfigSources::default();
        sources.start_from(options);
        match model_plan(&sources.resolve())? {
            ModelPlan::Gpt(read) => Ok(with_training_of(self.shape, &read)),
            ModelPlan::Mlp(_) => unreachable!("families of Hugging Face are transformers"),
        }
    }

    /// The keys that differ between the model and one that was read, with the values of the model.
    fn differing(&self, read: &GptShape) -> Map<String, Json> {
        let (mut ours, read) = (keys(self.family, self.shape), keys(self.family, read));
        ours.retain(|key, value| read.get(key) != Some(value));
        ours
    }

    /// The first tensor of the model that the model `read` does not have as such.
    fn tensor(&self, read: &GptShape) -> Option<String> {
        let of = |shape: &GptShape| entries(&GptShape { lora: None, ..shape.clone() }, Naming::Ours);
        let (ours, read) = (of(self.shape), of(read));
        let differing = ours.iter().find(|tensor| !read.contains(tensor));
        differing.map(|tensor| format!("{} of shape {:?}", tensor.name, tensor.shape))
    }

    /// The token that ends an answer, if the model was trained on answers and one token ends them.
    fn end_of_answer(&self) -> Option<(u64, String)> {
        let text = self.template.filter(|_| self.learned_answers)?.end_of_answer();
        let token = self.tokenizer?.added_token(&text)?;
        Some((token.into(), text))
    }

    /// The tokenizer of the model that training began with.
    fn write_source_tokenizer(&self) -> Result<(), RunError> {
        let mut files = self.source.iter().filter(|(file, _)| file.is_of_tokenizer());
        files.try_for_each(|(file, content)| self.put(file.at_hugging_face(), content))
    }

    /// Writes the chat template of training beside the tokenizer of the model that training began with, if that had another.
    fn replace_template(&self, template: &ChatTemplate) -> Result<(), RunError> {
        let theirs = self.tokenizer.and_then(|tokenizer| ChatTemplate::open(None, Some(self.target), tokenizer).ok());
        if theirs.as_ref().is_some_and(|theirs| theirs.source() == template.source()) {
            return Ok(());
        }
        if theirs.is_some() {
            notice("the chat template is that of training. The model that training began with had another");
        }
        let name = SourceFile::TokenizerConfig.at_hugging_face();
        if let Ok(Some(Json::Object(mut config))) = self.source.json(SourceFile::TokenizerConfig)
            && config.remove("chat_template").is_some()
        {
            self.put_json(name, &config.into())?;
        }
        self.put(SourceFile::ChatTemplate.at_hugging_face(), template.source().as_bytes())
    }

    /// The settings that `transformers` does not find in `tokenizer.json`, and the chat template.
    fn write_tokenizer_config(&self) -> Result<(), RunError> {
        if let Some(template) = self.template {
            self.put(CopiedFile::ChatTemplate.word(), template.source().as_bytes())?;
        }
        let Some(tokenizer @ Tokenizer::HuggingFace(_)) = self.tokenizer else { return Ok(()) };
        if !tokenizer.begins_as_its_file() {
            notice(
                "the tokenizer of the export begins a text otherwise than training did: tokenizer.json says it otherwise",
            );
        }
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer.end_of_text_as_text(),
            "model_max_length": self.shape.max_seq_len, "clean_up_tokenization_spaces": false,
            // Without it the class makes token_type_ids too. GPT-2 adds them to its embeddings, others refuse them.
            "model_input_names": ["input_ids", "attention_mask"],
        });
        for (name, token) in self.template.into_iter().flat_map(ChatTemplate::special_tokens) {
            config[name] = json!(token);
        }
        self.put_json(CopiedFile::TokenizerConfig.word(), &config)
    }
}

fn notice(text: &str) {
    warn(&format!("notice: {text}"));
}

/// The error of an export whose `config.json` would not be that of the model. `differing`: what the model has and the reader
/// would not.
fn reads_otherwise(target: &Path, differing: &[String]) -> UserError {
    UserError::new(
        format!(
            "a config.json in {} would not be read as the model: it has {}",
            target.display(),
            differing.join(", ")
        ),
        "an export is read as the model that was trained",
        "train with values that a config.json can hold",
    )
}

/// The keys of `config.json` that a shape decides.
fn keys(family: &HuggingFace, shape: &GptShape) -> Map<String, Json> {
    let of_all_families = json!({
        "vocab_size": shape.vocab, "tie_word_embeddings": shape.tied, "initializer_range": shape.init_std,
    });
    let own = family.keys.iter().map(|keys| (keys.write)(shape));
    let named = json!({ "architectures": [family.class], "model_type": family.model_type });
    let objects = own.chain([named, of_all_families]);
    objects.filter_map(|keys| if let Json::Object(keys) = keys { Some(keys) } else { None }).flatten().collect()
}

/// The shape `theirs` with the values of `ours` that belong to training and not to a model.
fn with_training_of(ours: &GptShape, theirs: &GptShape) -> GptShape {
    GptShape {
        max_seq_len: ours.max_seq_len,
        hidden_dropout: ours.hidden_dropout,
        attention_dropout: ours.attention_dropout,
        init_std: ours.init_std,
        further_tokens: ours.further_tokens,
        ..theirs.clone()
    }
}

/// The tokens of a key that has one, several or none.
fn tokens(value: Option<&Json>) -> Vec<u64> {
    match value {
        Some(Json::Array(several)) => several.iter().filter_map(Json::as_u64).collect(),
        Some(one) => one.as_u64().into_iter().collect(),
        None => Vec::new(),
    }
}
