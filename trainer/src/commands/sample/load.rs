//! What a folder holds that text can be made with: a model's shape and weights, and its tokenizer.

use std::path::{Path, PathBuf};

use common::UserError;
use data::Tokenizer;
use device::{DType, Device};
use engine::model::{GptShape, gpt};
use engine::params::Params;
use toml::Value;

use super::SampleRequest;
use crate::checkpoint::{newest_in, tokenizer_of};
use crate::config::model_plan::{ModelPlan, model_plan};
use crate::config::{Layers, RunConfig};
use crate::error::RunError;
use crate::hf::Pretrained;

/// A model that can be asked to go on with a text.
pub struct Loaded {
    /// The model's sizes, for one sequence at a time.
    pub shape: GptShape,
    /// What its tokens mean.
    pub tokenizer: Tokenizer,
    folder: PathBuf,
    pretrained: Pretrained,
    /// A Hugging Face model's, whose prompts begin with the tokens that its tokenizer adds.
    theirs: bool,
}

impl Loaded {
    /// Reads what is in the request's folder; weights are not touched yet.
    ///
    /// # Errors
    /// A folder without a model, a damaged checkpoint, a model that has no text, a tokenizer that is missing or does not
    /// go with the model.
    pub fn open(request: &SampleRequest) -> Result<Loaded, UserError> {
        let folder = newest_in(&request.checkpoint)?;
        let pretrained = Pretrained::open(&folder)?;
        let theirs = folder.join("config.json").exists();
        let config = config(&folder, &pretrained, theirs)?;
        let ModelPlan::Gpt(shape) = model_plan(&config)? else {
            let what = format!("the model of {} has model.kind = \"{}\"", folder.display(), config.model.kind);
            return Err(UserError::new(what, "only a gpt makes text", "name a checkpoint of one"));
        };
        let tokenizer = tokenizer(request, &config, &shape, &folder, theirs)?;
        Ok(Loaded { shape: GptShape { batch: 1, ..shape }, tokenizer, folder, pretrained, theirs })
    }

    /// The tokens of a prompt: of an empty one the token that begins a document.
    ///
    /// # Errors
    /// A text the tokenizer refuses, one with tokens the model has not, or more of them than its context holds.
    pub fn prompt(&self, text: &str) -> Result<Vec<i32>, UserError> {
        let encoded = if self.theirs { self.tokenizer.encode_with_special(text) } else { self.tokenizer.encode(text) };
        let mut tokens = encoded.map_err(|error| {
            UserError::new(format!("the prompt cannot be tokenised: {error}"), "it is text", "give another prompt")
        })?;
        if tokens.is_empty() {
            tokens.push(self.tokenizer.end_of_text());
        }
        let (count, seq) = (tokens.len(), self.shape.seq);
        if count > seq {
            return Err(UserError::new(
                format!("the prompt has {count} tokens"),
                format!("it fits the model's context of {seq} tokens"),
                "shorten it, or use a model of a larger model.seq_length",
            ));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.shape.vocab) {
            return Err(UserError::new(
                format!("the prompt has token {token}"),
                format!("the model's tokens are 0 to {}", self.shape.vocab - 1),
                "name the tokenizer that the model was trained with: --tokenizer",
            ));
        }
        Ok(tokens.into_iter().map(|token| token as i32).collect())
    }

    /// Tokens that may be written: those that the model and the tokenizer both have.
    pub fn vocab(&self) -> usize {
        self.shape.vocab.min(self.tokenizer.vocab())
    }

    /// The weights, on the device.
    ///
    /// # Errors
    /// Weights that are missing, broken or do not fit; out of memory.
    pub fn params(&self, device: &Device) -> Result<Params, RunError> {
        let specs = gpt(self.shape.clone()).specs;
        let params = Params::without_gradients(device, specs)?;
        self.pretrained.load(&self.shape, &params, device)?;
        Ok(params)
    }

    /// The model in a line.
    pub fn describe(&self) -> String {
        let GptShape { layers, hidden, vocab, seq, dtype, .. } = &self.shape;
        format!("{}: {layers} layers of {hidden}, {vocab} tokens, context {seq}, {dtype}", self.folder.display())
    }

    /// Type of weights and activations in layers.
    pub fn dtype(&self) -> DType {
        self.shape.dtype
    }
}

/// The resolved configuration of a folder: all of a run's, or the defaults with a model's options.
fn config(folder: &Path, pretrained: &Pretrained, theirs: bool) -> Result<RunConfig, UserError> {
    let mut layers = Layers::default();
    if !theirs {
        layers.read_file(&folder.join("config.toml"))?;
    }
    // What `init_from` named is resolved in the run's own options; the folder may be gone.
    let model: Vec<(&'static str, Value)> = pretrained.options().to_vec();
    layers.start_from(&model);
    Ok(layers.resolve())
}

fn tokenizer(
    request: &SampleRequest,
    config: &RunConfig,
    shape: &GptShape,
    folder: &Path,
    theirs: bool,
) -> Result<Tokenizer, UserError> {
    let end = request.end_of_text.as_deref().or(config.data.end_of_text.as_deref());
    if let Some(name) = &request.tokenizer {
        return Tokenizer::open(name, end);
    }
    if theirs || folder.join("tokenizer.json").exists() {
        return Tokenizer::open(&folder.display().to_string(), end);
    }
    // A run on token files need not say what its tokens mean.
    if config.data.tokenizer == "byte" && shape.vocab > 256 {
        return Err(UserError::new(
            format!("the model of {} has {} tokens, and no tokenizer", folder.display(), shape.vocab),
            "a tokenizer says what tokens mean; bytes are only 256",
            "name the one its data were made with: --tokenizer tokenizer.json",
        ));
    }
    tokenizer_of(folder, config, end).map_err(|error| UserError {
        fix: "name the one its data were made with: --tokenizer tokenizer.json".into(),
        ..error
    })
}
