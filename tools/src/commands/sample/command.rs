//! The command line of `trainer sample`, and its start.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use common::terminal::{Screen, warn};
use common::{Mistakes, UserError};
use data::Tokenizer;
use device::Device;
use launch::RankEnv;

use super::{Loaded, Prompt, SampleRequest, sample};
use crate::commands::args::{MODEL_FOLDER, device_flag, text};
use trainer::checkpoint::named_tokenizer;
use trainer::config::DeviceChoice;
use trainer::error::RunError;
use trainer::generation::Sampler;
use trainer::run::accelerator::{Accelerator, Exactness};
use trainer::run::ranks::fail;

pub(crate) fn command() -> Command {
    let prompt = "Text to continue. Without it the model begins a document";
    let sample = Command::new("sample")
        .about("Continues a text with a trained model")
        .arg(any("prompt", "TEXT", prompt).conflicts_with("prompt-file"))
        .arg(flag("prompt-file", "FILE", "File with the text to continue"))
        .arg(
            any("samples", "N", "Number of texts, each with the next seed; a line with --- is between them")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..)),
        );
    with_generation_flags(sample, "200")
}

fn flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// A flag with a value that may begin with a hyphen, as a text may. Our own error, not clap's, should refuse a negative
/// number.
pub(crate) fn any(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    flag(name, value, help).allow_hyphen_values(true)
}

/// A command with the flags that name a model and say how it chooses tokens: at most `tokens` of them, if not given.
pub(crate) fn with_generation_flags(command: Command, tokens: &'static str) -> Command {
    let checkpoint = MODEL_FOLDER;
    let temperature = "Below 1 likely tokens become likelier, above 1 less likely. 0 always takes the likeliest";
    command
        .arg(flag("checkpoint", "DIR", checkpoint).required(true))
        .arg(
            any("tokens", "N", "Largest number of tokens to add")
                .default_value(tokens)
                .value_parser(value_parser!(u32)),
        )
        .arg(any("temperature", "T", temperature).default_value("0.8").value_parser(value_parser!(f64)))
        .arg(
            any("top-k", "K", "Choose only among the K likeliest tokens; 0 for all")
                .default_value("200")
                .value_parser(value_parser!(u32)),
        )
        .arg(
            any(
                "top-p",
                "P",
                "Choose only among the likeliest tokens that have this share of the probability together; 1 for all",
            )
            .default_value("1")
            .value_parser(value_parser!(f64)),
        )
        .arg(
            any("seed", "SEED", "The same seed gives the same text")
                .default_value("1")
                .value_parser(value_parser!(u64)),
        )
        .arg(flag(
            "tokenizer",
            "TOKENIZER",
            "byte, a tokenizer.json, or a folder with one. If not given: the one of training",
        ))
        .arg(flag("end-of-text", "TOKEN", "Token that ends a document. If not given: the one of training"))
        .arg(device_flag("Where to run"))
        .arg(
            any("threads", "N", "host: threads. If not given: all cores")
                .value_parser(value_parser!(u32).range(1..=4096)),
        )
}

/// The text that a command line asks for. Numbers out of range are added to `mistakes`.
pub(crate) fn request(matches: &ArgMatches, mistakes: &mut Mistakes) -> SampleRequest {
    let prompt = match text(matches, "prompt-file") {
        Some(path) => Prompt::File(path.into()),
        None => Prompt::Text(text(matches, "prompt").unwrap_or_default()),
    };
    let samples = matches.get_one::<u32>("samples").map_or(1, |&number| number as usize);
    SampleRequest { prompt, samples, ..generation_request(matches, mistakes) }
}

/// The settings that the flags of [`with_generation_flags`] ask for, without a prompt. Numbers out of range, a temperature below
/// 0 and a share that is none, are added to `mistakes`.
pub(crate) fn generation_request(matches: &ArgMatches, mistakes: &mut Mistakes) -> SampleRequest {
    let text = |name: &str| text(matches, name);
    let number = |name: &str| matches.get_one::<u32>(name).map(|&number| number as usize);
    let temperature = matches.get_one::<f64>("temperature").copied().unwrap_or(1.0);
    if !(temperature >= 0.0 && temperature.is_finite()) {
        mistakes.add(UserError::new(
            format!("--temperature {temperature}"),
            "a temperature is 0 or more, and finite",
            "for example --temperature 0.8, or 0 for the likeliest token each time",
        ));
    }
    let top_p = matches.get_one::<f64>("top-p").copied().unwrap_or(1.0);
    if !(top_p > 0.0 && top_p <= 1.0) {
        let rule = "a share of the probability is above 0, and at most 1";
        mistakes.add(UserError::new(format!("--top-p {top_p}"), rule, "for example --top-p 0.9, or 1 for all tokens"));
    }
    SampleRequest {
        checkpoint: text("checkpoint").map(PathBuf::from).unwrap_or_default(),
        tokenizer: text("tokenizer").as_deref().map(named_tokenizer),
        end_of_text: text("end-of-text"),
        prompt: Prompt::Text(String::new()),
        tokens: number("tokens").unwrap_or(0),
        samples: 1,
        sampler: Sampler {
            temperature,
            top_k: number("top-k").filter(|&k| k > 0),
            top_p: Some(top_p).filter(|&share| share < 1.0),
            seed: matches.get_one("seed").copied().unwrap_or(0),
        },
        device: matches.get_one("device").copied().unwrap_or(DeviceChoice::Auto),
        threads: number("threads"),
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

/// Continues a text on standard output; returns the exit code.
pub(crate) fn run(request: &SampleRequest, env: &RankEnv) -> i32 {
    match generate(request, env) {
        Ok(summary) => {
            warn(&summary);
            0
        }
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}

fn generate(request: &SampleRequest, env: &RankEnv) -> Result<String, RunError> {
    let mut mistakes = Mistakes::default();
    let loaded = check(request, env, &mut mistakes);
    mistakes.end()?;
    let Some(loaded) = loaded else { unreachable!("a request without mistakes has a model") };
    let device = open_device(request, env)?;
    // A model may write anything. Files and other programs get all of it as it is.
    match stdout().is_terminal() {
        true => sample(request, &loaded, &device, &mut Screen),
        false => sample(request, &loaded, &device, &mut stdout()),
    }
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
