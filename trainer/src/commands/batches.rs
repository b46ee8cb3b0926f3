//! `trainer batches`: the samples a run would take, in its order, as a file, so that another framework can train on the
//! same data in the same order.
//!
//! A file is samples of `model.seq_length + 1` tokens end to end, nothing else. A sample's inputs are all but its last
//! token, its targets all but its first. Tokens are 16-bit little-endian for vocabularies up to 65536, otherwise 32-bit.
//! A step's `train.global_batch_size` samples follow those of the step before; with several ranks the first rank's come
//! first. The samples of a run do not depend on how many ranks or microbatches share a step.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::format::{bytes, count};
use common::{Stop, UserError};
use data::{DataError, Source, Split, TokenType, ensure_not_interrupted};
use device::{HostValues, Staging};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::interruption;
use crate::config::RunConfig;
use crate::config::plan::{ModelPlan, RunPlan};
use crate::error::RunError;
use crate::run::source::source;

/// Which batches to write, and where to.
#[derive(Clone, Debug)]
pub struct BatchesRequest {
    /// The run that would take them, from its beginning to `train.steps`.
    pub config: RunConfig,
    /// The file for training batches.
    pub output: PathBuf,
    /// The file for the batches of an evaluation, if they are wanted: `train.eval_steps` of them.
    pub validation: Option<PathBuf>,
}

/// Writes them; returns what to tell the user.
///
/// # Errors
/// Input that is wrong, files that exist, or that cannot be written; then nothing is left behind of that file.
pub fn write_batches(request: &BatchesRequest) -> Result<String, RunError> {
    let plan = RunPlan::new(request.config.clone(), 1)?;
    let ModelPlan::Gpt(shape) = &plan.model else {
        let rule = "batches of tokens are what a GPT trains on";
        return Err(UserError::new("model.kind = \"mlp\"", rule, "set model.kind = \"gpt\"").into());
    };
    let train = &plan.config.train;
    let files = [
        Some(("--output", &request.output, Split::Train, train.steps)),
        request.validation.as_ref().map(|path| ("--validation", path, Split::Validation, train.eval_steps)),
    ];
    if request.validation.is_some() && train.eval_steps == 0 {
        let fix = "set train.eval_steps = 8, or leave --validation out";
        return Err(UserError::new(
            "--validation with train.eval_steps = 0",
            "it has the batches of an evaluation",
            fix,
        )
        .into());
    }
    if request.validation.as_ref() == Some(&request.output) {
        let what = format!("--output and --validation are both {}", request.output.display());
        return Err(UserError::new(what, "each is a file of its own", "name another").into());
    }
    for (flag, path, ..) in files.iter().flatten() {
        if path.symlink_metadata().is_ok() {
            let what = format!("{flag} {} exists", path.display());
            return Err(UserError::new(what, "nothing is overwritten", "name another, or remove it").into());
        }
    }
    let mut begun = Vec::new();
    for (flag, path, split, steps) in files.into_iter().flatten() {
        begun.push((Partial::beside(flag, path)?, split, steps));
    }
    let stop = interruption()?;
    let source = source(&plan)?;
    if request.validation.is_some() && !source.validates() {
        let what = format!("--validation with data.split = {}", plan.config.data.split);
        let fix = "set data.split = 0.9, data.validation_path, or leave --validation out";
        return Err(UserError::new(what, "it needs data that are not trained on", fix).into());
    }
    let kind = TokenType::for_vocab(shape.vocab);
    let mut told = Vec::new();
    for (partial, split, steps) in begun {
        let samples = match split {
            Split::Train => plan.batch_size.samples_of(steps),
            Split::Validation => (steps * train.global_batch_size) as u64,
        };
        let batches = Samples { source: &*source, split, batch: train.global_batch_size, seq: shape.seq, kind };
        told.push(batches.write(steps, samples, partial, &stop)?);
    }
    Ok(told.join("\n"))
}

/// The samples of one split.
struct Samples<'s> {
    source: &'s dyn Source,
    split: Split,
    /// Samples that are read at once.
    batch: usize,
    seq: usize,
    kind: TokenType,
}

impl Samples<'_> {
    /// Writes the samples of so many steps to a file, which gets its name when all are on disk.
    fn write(&self, steps: usize, samples: u64, partial: Partial, stop: &Stop) -> Result<String, DataError> {
        let started = Instant::now();
        let path = &partial.path;
        let failed = |error: std::io::Error| DataError {
            what: format!("{} cannot be written: {error}", path.display()),
            fix: "check the folder's permissions and space, or name another".into(),
        };
        let mut file = BufWriter::with_capacity(1 << 20, &partial.file);
        let bar = ProgressBar::with_draw_target(Some(samples), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} samples  {per_sec}  {eta} left") {
            bar.set_style(style);
        }
        let mut encoded = Vec::new();
        for first in (0..samples).step_by(self.batch) {
            ensure_not_interrupted(stop, path)?;
            encoded.clear();
            let count = self.batch.min((samples - first) as usize);
            self.encode(first, count, &mut encoded)?;
            file.write_all(&encoded).map_err(failed)?;
            bar.inc(count as u64);
        }
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().and_then(|()| std::fs::rename(&partial.temporary, path)).map_err(failed)?;
        bar.finish_and_clear();
        Ok(format!(
            "{steps} batches, {} samples of {} {}-bit tokens, {}, {}; {:.2} s",
            count(samples as f64),
            self.seq + 1,
            8 * self.kind.size(),
            bytes(samples as usize * (self.seq + 1) * self.kind.size()),
            path.display(),
            started.elapsed().as_secs_f64(),
        ))
    }

    /// Appends samples to `encoded`.
    fn encode(&self, first: u64, count: usize, encoded: &mut Vec<u8>) -> Result<(), DataError> {
        let batch = self.source.batch(self.split, first, count, &Staging::default())?;
        if let HostValues::I32(tokens) = &batch {
            // Ids were checked when they were read.
            let ids: Vec<u32> = tokens.iter().map(|&id| id as u32).collect();
            self.kind.encode(&ids, encoded);
        }
        Ok(())
    }
}

/// A file that is not complete; it goes if it is not renamed.
struct Partial {
    /// The name it will have.
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Partial {
    /// Begins the file that `flag` names.
    fn beside(flag: &str, path: &Path) -> Result<Partial, UserError> {
        let name = path.file_name().map(|name| name.display().to_string()).unwrap_or_default();
        let temporary = path.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        let file = File::create(&temporary).map_err(|error| {
            let rule = "it names a file that can be written";
            UserError::new(format!("{flag} {}: {error}", path.display()), rule, "name one in a folder that exists")
        })?;
        Ok(Partial { path: path.into(), temporary, file })
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After it was renamed there is nothing here.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
