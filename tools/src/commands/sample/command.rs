//! The command line of `trainer sample`, and the command's start.

use std::io::{IsTerminal, Write, stdout};

use clap::Args;
use common::terminal::Screen;
use common::{Choice, Mistakes, UserError};
use data::Tokenizer;
use device::Device;
use launch::RankEnv;

use super::{Loaded, Prompt, SampleRequest, sample};
use crate::commands::args::{MODEL_FOLDER, device, whole};
use trainer::checkpoint::named_tokenizer;
use trainer::config::DeviceChoice;
use trainer::error::RunError;
use trainer::generation::Sampler;
use trainer::run::accelerator::{Accelerator, Exactness};

/// The flags of `trainer sample`.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Flags {
    /// Text to continue. Without it the model begins a document.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// File with the text to continue.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<String>,
    /// Number of texts, each with the next seed; a line with --- is between them.
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value = "1", value_parser = whole(1..))]
    samples: usize,
    #[command(flatten)]
    generation: GenerationFlags<200>,
}

impl Flags {
    /// The text that a command line asks for. Numbers out of range are added to `mistakes`.
    pub(crate) fn request(self, mistakes: &mut Mistakes) -> SampleRequest {
        let prompt = match self.prompt_file {
            Some(path) => Prompt::File(path.into()),
            None => Prompt::Text(self.prompt.unwrap_or_default()),
        };
        SampleRequest { prompt, samples: self.samples, ..self.generation.request(mistakes) }
    }
}

/// The flags that name a model and say how it chooses tokens: at most `TOKENS` of them, if not given. Their values may begin
/// with a hyphen: our own error, not clap's, should refuse a negative number.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct GenerationFlags<const TOKENS: usize> {
    #[arg(long, value_name = "DIR", help = MODEL_FOLDER)]
    checkpoint: String,
    /// Largest number of tokens to add.
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value = TOKENS.to_string(), value_parser = whole(..))]
    tokens: usize,
    /// Below 1 likely tokens become likelier, above 1 less likely. 0 always takes the likeliest.
    #[arg(long, value_name = "T", allow_hyphen_values = true, default_value = "0.8")]
    temperature: f64,
    /// Choose only among the K likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", allow_hyphen_values = true, default_value = "200", value_parser = whole(..))]
    top_k: usize,
    /// Choose only among the likeliest tokens that have this share of the probability together; 1 for all.
    #[arg(long, value_name = "P", allow_hyphen_values = true, default_value = "1")]
    top_p: f64,
    /// The same seed gives the same text.
    #[arg(long, value_name = "SEED", allow_hyphen_values = true, default_value = "1")]
    seed: u64,
    /// byte, a tokenizer.json, or a folder with one. If not given: the one of training.
    #[arg(long, value_name = "TOKENIZER")]
    tokenizer: Option<String>,
    /// Token that ends a document. If not given: the one of training.
    #[arg(long, value_name = "TOKEN")]
    end_of_text: Option<String>,
    /// Where to run.
    #[arg(long, value_name = "device", default_value = DeviceChoice::Auto.word(), value_parser = device())]
    device: DeviceChoice,
    /// host: threads. If not given: all cores.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(1..=4096))]
    threads: Option<usize>,
}

impl<const TOKENS: usize> GenerationFlags<TOKENS> {
    /// The settings that the flags ask for, without a prompt. Numbers out of range, a temperature below 0 and a share that
    /// is none, are added to `mistakes`.
    pub(crate) fn request(self, mistakes: &mut Mistakes) -> SampleRequest {
        let GenerationFlags::<TOKENS> { temperature, top_p, .. } = self;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            mistakes.add(UserError::new(
                format!("--temperature {temperature}"),
                "a temperature is 0 or more, and finite",
                "for example --temperature 0.8, or 0 for the likeliest token each time",
            ));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            let rule = "a share of the probability is above 0, and at most 1";
            let fix = "for example --top-p 0.9, or 1 for all tokens";
            mistakes.add(UserError::new(format!("--top-p {top_p}"), rule, fix));
        }
        SampleRequest {
            checkpoint: self.checkpoint.into(),
            tokenizer: self.tokenizer.as_deref().map(named_tokenizer),
            end_of_text: self.end_of_text,
            prompt: Prompt::Text(String::new()),
            tokens: self.tokens,
            samples: 1,
            sampler: Sampler {
                temperature,
                top_k: Some(self.top_k).filter(|&k| k > 0),
                top_p: Some(top_p).filter(|&share| share < 1.0),
                seed: self.seed,
            },
            device: self.device,
            threads: self.threads,
        }
    }
}

/// The model of a request. A file that is wrong, or a device that is not there, is added to `mistakes`.
pub(crate) fn check(request: &SampleRequest, env: &RankEnv, mistakes: &mut Mistakes) -> Option<Loaded> {
    mistakes.keep(Accelerator::choose(request.device, env));
    let text = mistakes.keep(request.prompt.text());
    let loaded = mistakes.keep(Loaded::open(request));
    if let (None, Some(name)) = (&loaded, &request.tokenizer) {
        mistakes.keep(Tokenizer::open(name, request.end_of_text.as_deref()));
    }
    mistakes.keep(loaded.as_ref()?.prompt(&text?));
    loaded
}

/// Continues a text on standard output; returns a summary.
///
/// # Errors
/// What is wrong with the request; see [`sample`].
pub(crate) fn run(request: &SampleRequest, env: &RankEnv) -> Result<String, RunError> {
    let mut mistakes = Mistakes::default();
    let loaded = check(request, env, &mut mistakes);
    mistakes.end()?;
    let Some(loaded) = loaded else { unreachable!("a request without mistakes has a model") };
    let device = open_device(request, env)?;
    sample(request, &loaded, &device, &mut *output())
}

/// Standard output for the text of a model, which may be anything. Files and other programs get all of it as it is.
pub(crate) fn output() -> Box<dyn Write> {
    if stdout().is_terminal() { Box::new(Screen) } else { Box::new(stdout()) }
}

/// The device of a request.
///
/// # Errors
/// It is not there.
pub(crate) fn open_device(request: &SampleRequest, env: &RankEnv) -> Result<Device, RunError> {
    let threads =
        request.threads.unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), 1));
    Ok(Accelerator::choose(request.device, env)?.open(Exactness::default(), threads, false)?)
}
