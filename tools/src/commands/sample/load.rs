//! The model in a folder: its shape, its weights and its tokenizer.

use common::UserError;
use common::format::counted;
use data::{ChatTemplate, Tokenizer, TokenizerCopy};
use device::Device;
use engine::model::{GptShape, gpt};
use engine::params::Params;

use super::SampleRequest;
use trainer::config::plan::{ModelPlan, model_plan};
use trainer::error::RunError;
use trainer::generation::prompt_tokens;
use trainer::hf::Pretrained;

/// A model that can continue a text.
pub struct Loaded {
    /// The model's sizes, for one sequence at a time.
    pub shape: GptShape,
    /// The tokenizer of the model's text.
    pub tokenizer: Tokenizer,
    pretrained: Pretrained,
}

impl Loaded {
    /// Opens the request's folder. Weights are not read yet.
    ///
    /// # Errors
    /// A folder without a model, a damaged checkpoint, a model of something else than text, a tokenizer that is missing or
    /// does not fit the model.
    pub fn open(request: &SampleRequest) -> Result<Loaded, UserError> {
        let pretrained = Pretrained::open(&request.checkpoint)?;
        let config = pretrained.run()?.unwrap_or_else(|| pretrained.config());
        let ModelPlan::Gpt(shape) = model_plan(&config)? else {
            let folder = pretrained.folder().display();
            let what = format!("the model of {folder} has model.kind = \"{}\"", config.model.kind);
            return Err(UserError::new(what, "only a gpt generates text", "name a checkpoint of a gpt"));
        };
        pretrained.tell_of_unread(&shape);
        // Layers that predict further tokens belong to training.
        let shape = GptShape { further_tokens: None, ..shape };
        let tokenizer = tokenizer(request, &shape, &pretrained)?;
        Ok(Loaded { shape, tokenizer, pretrained })
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
            None => ChatTemplate::open(name, Some(self.pretrained.tokenizer_folder()), &self.tokenizer),
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
        self.pretrained.load(&self.shape, &params, device, 0..0)?;
        Ok(params)
    }

    /// The model in a line.
    pub fn describe(&self) -> String {
        let GptShape { layers, hidden, vocab, max_seq_len, precision, .. } = &self.shape;
        let layers = counted(*layers, "layer");
        format!(
            "{}: {layers} of {hidden}, {vocab} tokens, context {max_seq_len}, {precision}",
            self.pretrained.folder().display()
        )
    }
}

/// The tokenizer that the request names, or else the folder's.
fn tokenizer(request: &SampleRequest, shape: &GptShape, pretrained: &Pretrained) -> Result<Tokenizer, UserError> {
    let end = request.end_of_text.as_deref();
    if let Some(name) = &request.tokenizer {
        return Tokenizer::open(name, end);
    }
    let folder = pretrained.tokenizer_folder();
    if let Some(copy) = TokenizerCopy::read(folder)? {
        return copy.open(end);
    }
    if pretrained.is_hugging_face() || Tokenizer::is_in(folder) {
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
