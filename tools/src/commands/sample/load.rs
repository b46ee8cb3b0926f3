//! The model in a folder: its shape, its weights and its tokenizer.

use std::path::{Path, PathBuf};

use common::UserError;
use common::format::counted;
use data::{ChatTemplate, Tokenizer, TokenizerCopy};
use device::Device;
use engine::model::{GptShape, gpt};
use engine::params::Params;
use toml::Value;

use super::SampleRequest;
use trainer::checkpoint::newest_in;
use trainer::config::model_plan::{ModelPlan, model_plan};
use trainer::config::{ConfigSources, RunConfig};
use trainer::error::RunError;
use trainer::generation::prompt_tokens;
use trainer::hf::Pretrained;

/// A model that can continue a text.
pub struct Loaded {
    /// The model's sizes, for one sequence at a time.
    pub shape: GptShape,
    /// The tokenizer of its text.
    pub tokenizer: Tokenizer,
    folder: PathBuf,
    pretrained: Pretrained,
}

impl Loaded {
    /// Opens the request's folder. Weights are not read yet.
    ///
    /// # Errors
    /// A folder without a model, a damaged checkpoint, a model of something else than text, a tokenizer that is missing or
    /// does not fit the model.
    pub fn open(request: &SampleRequest) -> Result<Loaded, UserError> {
        let folder = newest_in(&request.checkpoint)?;
        let pretrained = Pretrained::open_checked(&folder)?;
        pretrained.tell_of_unread();
        let is_hugging_face = folder.join("config.json").exists();
        let config = config(&folder, &pretrained, is_hugging_face)?;
        let ModelPlan::Gpt(shape) = model_plan(&config)? else {
            let what = format!("the model of {} has model.kind = \"{}\"", folder.display(), config.model.kind);
            return Err(UserError::new(what, "only a gpt generates text", "name a checkpoint of a gpt"));
        };
        let tokenizer = tokenizer(request, &shape, &folder, is_hugging_face)?;
        Ok(Loaded { shape: GptShape { batch: 1, ..shape }, tokenizer, folder, pretrained })
    }

    /// The tokens of a prompt, begun like a document. An empty prompt has only the tokens that begin a document. If
    /// there are none, it has the token that ends the document before.
    ///
    /// # Errors
    /// A text that the tokenizer refuses, tokens that the model does not have, or more tokens than fit its context.
    pub fn prompt(&self, text: &str) -> Result<Vec<i32>, UserError> {
        prompt_tokens(&self.tokenizer, &self.shape, self.tokenizer.encode_document(text))
    }

    /// The tokens of a text that a chat template made, as in training.
    ///
    /// # Errors
    /// As [`Loaded::prompt`].
    pub fn prompt_of_chat(&self, text: &str) -> Result<Vec<i32>, UserError> {
        prompt_tokens(&self.tokenizer, &self.shape, self.tokenizer.encode_chat(text))
    }

    /// The chat template that the request names, or else the one that lies beside the tokenizer.
    ///
    /// # Errors
    /// There is none, or it is wrong.
    pub fn chat_template(&self, request: &SampleRequest, name: Option<&str>) -> Result<ChatTemplate, UserError> {
        match &request.tokenizer {
            Some(opened) => ChatTemplate::of(name, opened, &self.tokenizer),
            None => ChatTemplate::open(name, Some(&self.folder), &self.tokenizer),
        }
    }

    /// The number of tokens that can be generated: those that both the model and the tokenizer have.
    pub fn vocab(&self) -> usize {
        self.shape.vocab.min(self.tokenizer.vocab())
    }

    /// Loads the weights to the device.
    ///
    /// # Errors
    /// Weights that are missing, damaged or do not fit; out of memory.
    pub fn params(&self, device: &Device) -> Result<Params, RunError> {
        let specs = gpt(self.shape.clone()).specs;
        let params = Params::without_gradients(device, specs)?;
        self.pretrained.load(&self.shape, &params, device)?;
        Ok(params)
    }

    /// The model in a line.
    pub fn describe(&self) -> String {
        let GptShape { layers, hidden, vocab, seq, precision, .. } = &self.shape;
        let layers = counted(*layers, "layer");
        format!("{}: {layers} of {hidden}, {vocab} tokens, context {seq}, {precision}", self.folder.display())
    }
}

/// The configuration of a folder: that of its run, or the defaults with the model's options.
fn config(folder: &Path, pretrained: &Pretrained, is_hugging_face: bool) -> Result<RunConfig, UserError> {
    let mut sources = ConfigSources::default();
    if !is_hugging_face {
        sources.read_file(&folder.join("config.toml"))?;
    }
    // The options of the run already have the model's. The folder that `init_from` named may be gone.
    let model: Vec<(&'static str, Value)> = pretrained.options().to_vec();
    sources.start_from(&model);
    Ok(sources.resolve())
}

/// The tokenizer that the request names, or else the folder's.
fn tokenizer(
    request: &SampleRequest,
    shape: &GptShape,
    folder: &Path,
    is_hugging_face: bool,
) -> Result<Tokenizer, UserError> {
    let end = request.end_of_text.as_deref();
    if let Some(name) = &request.tokenizer {
        return Tokenizer::open(name, end);
    }
    if let Some(copy) = TokenizerCopy::read(folder)? {
        return copy.open(end);
    }
    if is_hugging_face || Tokenizer::is_in(folder) {
        return Tokenizer::open(&folder.display().to_string(), end);
    }
    // The data of the run did not give the meaning of their tokens. Without data it was trained on bytes.
    if shape.vocab > 256 {
        return Err(UserError::new(
            format!("the model of {} has {} tokens, and no tokenizer", folder.display(), shape.vocab),
            "a tokenizer turns tokens into text; the byte tokenizer has only 256",
            "name the one that made its data: --tokenizer tokenizer.json",
        ));
    }
    Ok(Tokenizer::Bytes)
}
