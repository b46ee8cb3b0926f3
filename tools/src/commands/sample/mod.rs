//! `trainer sample`: continues a text with a trained model.
//!
//! [`Loaded`] is the model in a folder.

mod command;
mod load;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use common::UserError;
use common::files::read_text;
use common::format::{bytes, counted};
use common::terminal::write_to;
use data::TextStream;
use device::Device;

pub(crate) use command::{Flags, GenerationFlags, check, open_device, output, run};
pub use load::Loaded;
use trainer::config::DeviceChoice;
use trainer::error::{RunError, file_error};
use trainer::generation::{Generator, Sampler, longest_prompt};

/// The largest file with a prompt that is read, in bytes.
const LARGEST_PROMPT: u64 = 64 << 20;

/// A text to continue, and how.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// A checkpoint, a folder of checkpoints, a Hugging Face model, or the output of `trainer convert`.
    pub checkpoint: PathBuf,
    /// `byte` or a `tokenizer.json`. `None` for the one that the model was trained with.
    pub tokenizer: Option<String>,
    /// The token that ends a document. `None` for the one of training.
    pub end_of_text: Option<String>,
    /// The text to continue. Empty for the beginning of a document.
    pub prompt: Prompt,
    /// Most tokens to add.
    pub tokens: usize,
    /// Number of texts, at least 1.
    pub samples: usize,
    /// How tokens are chosen in the first text. The seed of each further one is the next number.
    pub sampler: Sampler,
    /// The device to run on.
    pub device: DeviceChoice,
    /// Threads of the host device.
    pub threads: Option<usize>,
}

/// The source of a prompt.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// The command line.
    Text(String),
    /// A file.
    File(PathBuf),
}

impl Prompt {
    /// The text.
    ///
    /// # Errors
    /// A file that cannot be read, or is not UTF-8.
    pub fn text(&self) -> Result<String, UserError> {
        match self {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::File(path) => read_text(path, LARGEST_PROMPT).map_err(|error| {
                let what = format!("--prompt-file {} cannot be read: {error}", path.display());
                UserError::new(what, "a prompt file has UTF-8 text", "check the path, or use --prompt TEXT")
            }),
        }
    }
}

/// Writes the prompt to `out`, and then each generated token at once; as often as the request says. Returns a line about
/// the model and one about the speed.
///
/// # Errors
/// A prompt or weights that do not fit; device errors.
pub fn sample(
    request: &SampleRequest,
    loaded: &Loaded,
    device: &Device,
    out: &mut dyn Write,
) -> Result<String, RunError> {
    let text = request.prompt.text()?;
    let prompt = loaded.prompt(&text)?;
    let longest = longest_prompt(prompt.len(), request.tokens, loaded.shape.max_seq_len);
    let params = loaded.params(device)?;
    let mut generator = Generator::new(device, &loaded.shape, &params, longest)?;
    let mut show = |text: &str| write_to(out, text).map_err(file_error("standard output".into()));
    let (began, mut count, mut first) = (Instant::now(), 0usize, None);
    let end = loaded.tokenizer.end_of_text();
    let all = (request.tokens, loaded.vocab());
    let before: Vec<u32> =
        if text.is_empty() { Vec::new() } else { prompt.iter().map(|&token| token as u32).collect() };
    for number in 0..request.samples {
        if number > 0 {
            show("---\n")?;
        }
        show(&text)?;
        let mut stream = TextStream::after(&loaded.tokenizer, &before);
        let sampler = Sampler { seed: request.sampler.seed.wrapping_add(number as u64), ..request.sampler };
        generator.generate(&prompt, all, sampler, |token| -> Result<bool, RunError> {
            count += 1;
            first.get_or_insert_with(Instant::now);
            if token == end {
                return Ok(false);
            }
            show(&stream.push(token))
        })?;
        show(&stream.finish())?;
        show("\n")?;
    }
    let since = |from: Instant| from.elapsed().as_secs_f64();
    let rest = first.map_or(0.0, since).max(1e-9);
    Ok(format!(
        "{}\n{} read in {:.2} s, {count} written, {:.0} tokens/s, a cache of {}",
        loaded.describe(),
        counted(prompt.len(), "token"),
        since(began) - rest,
        count.saturating_sub(1) as f64 / rest,
        bytes(generator.cache_bytes())
    ))
}
