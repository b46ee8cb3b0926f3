//! Texts that the model writes during training, so that people see what the model has learned.
//!
//! Rank 0 writes them, between two steps, with a memory for one text beside the run's own. The weights are the run's: they are
//! read, and nothing else of the run is touched, so its numbers have the same bits with samples and without.

use std::path::Path;

use common::UserError;
use common::files::read_text;
use data::{Source, TextStream, Tokenizer};
use device::Device;
use engine::model::GptShape;
use engine::step::Stage;
use launch::watch::activity::Activity;

use crate::config::plan::{ModelPlan, RunPlan};
use crate::error::RunError;
use crate::generation::{Generator, Sampler, longest_prompt, prompt_tokens};
use crate::report::samples::SampleText;

/// The largest file of prompts that is read, in bytes.
const LARGEST_PROMPTS: u64 = 1 << 20;

/// The most prompts.
const MOST_PROMPTS: usize = 32;

/// Tokens that are added to a prompt.
const TOKENS: usize = 64;

/// The sampler that `trainer sample` has by default. The seed is the same each time, so that texts differ by the weights
/// alone.
const SAMPLER: Sampler = Sampler { temperature: 0.8, top_k: Some(200), top_p: None, seed: 1 };

/// The prompts of a run.
pub struct Prompts {
    tokenizer: Tokenizer,
    shape: GptShape,
    /// Each as text and as tokens.
    prompts: Vec<(String, Vec<i32>)>,
}

impl Prompts {
    /// Reads the file of prompts; `None` if the run writes no samples.
    ///
    /// # Errors
    /// A file that cannot be read or has no prompts, one that does not fit the model, data without a tokenizer.
    pub fn open(plan: &RunPlan, source: &dyn Source) -> Result<Option<Prompts>, UserError> {
        let (Some(path), ModelPlan::Gpt(shape)) = (&plan.config.logging.sample_prompts, &plan.model) else {
            return Ok(None);
        };
        let wrong = |problem: String| {
            let rule = format!("the file has 1 to {MOST_PROMPTS} prompts, each a line of UTF-8 text");
            UserError::new(format!("logging.sample_prompts = {path} {problem}"), rule, "check the path and the file")
        };
        let text =
            read_text(Path::new(path), LARGEST_PROMPTS).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() || lines.len() > MOST_PROMPTS {
            return Err(wrong(format!("has {} lines with text", lines.len())));
        }
        let tokenizer = tokenizer(source, shape)?;
        let prompt = |line: &str| -> Result<(String, Vec<i32>), UserError> {
            let tokens = prompt_tokens(&tokenizer, shape, tokenizer.encode_document(line))
                .map_err(|error| UserError { what: format!("{path}, `{line}`: {}", error.what), ..error })?;
            Ok((line.to_string(), tokens))
        };
        let prompts = lines.into_iter().map(prompt).collect::<Result<_, _>>()?;
        Ok(Some(Prompts { tokenizer, shape: shape.clone(), prompts }))
    }
}

/// The tokenizer of a run's data. Tokens that nothing gives a meaning are bytes, if there are no more than bytes.
fn tokenizer(source: &dyn Source, shape: &GptShape) -> Result<Tokenizer, UserError> {
    match source.tokenizer() {
        Some(copy) => copy.open(None),
        None if shape.vocab <= 256 => Ok(Tokenizer::Bytes),
        None => Err(UserError::new(
            "logging.sample_prompts with data that name no tokenizer",
            "a tokenizer turns prompts into tokens",
            "name the one that made the data: --tokenizer",
        )),
    }
}

/// The model of a run as a writer.
pub(super) struct SampleWriter {
    prompts: Prompts,
    generator: Generator,
}

impl SampleWriter {
    /// Takes the memory for one text. The stage stays as long as the writer.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(prompts: Prompts, device: &Device, stage: &Stage) -> Result<SampleWriter, RunError> {
        let longest =
            prompts.prompts.iter().map(|(_, tokens)| longest_prompt(tokens.len(), TOKENS, prompts.shape.max_seq_len));
        let longest = longest.max().unwrap_or(1);
        let generator = Generator::new(device, &prompts.shape, stage.params(), longest)?;
        Ok(SampleWriter { prompts, generator })
    }

    /// Continues each prompt. The device has no work of the run.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn write(&mut self, activity: &Activity) -> Result<Vec<SampleText>, RunError> {
        let Prompts { tokenizer, shape, prompts } = &self.prompts;
        let vocab = shape.vocab.min(tokenizer.vocab());
        let mut texts = Vec::new();
        for (prompt, tokens) in prompts {
            let before: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
            let (mut stream, mut text) = (TextStream::after(tokenizer, &before), String::new());
            self.generator.generate(tokens, (TOKENS, vocab), SAMPLER, |token| -> Result<bool, RunError> {
                activity.advance();
                if token == tokenizer.end_of_text() {
                    return Ok(false);
                }
                text += &stream.push(token);
                Ok(true)
            })?;
            text += &stream.finish();
            texts.push(SampleText { prompt: prompt.clone(), text });
        }
        Ok(texts)
    }
}
