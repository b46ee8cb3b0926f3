//! `trainer batches`: writes the samples of a run to a file, in the run's order, so that another framework can train on the
//! same data in the same order.
//!
//! A file consists of samples of `model.seq_length + 1` tokens each, end to end. A sample's inputs are all tokens but its last,
//! its targets all but its first. Tokens are little-endian, of 16 bits for vocabularies up to 65536 and of 32 bits for larger
//! ones. The samples of a step follow those of the step before. Within a step, the samples of the first data-parallel rank
//! come first. The samples of a run do not depend on the number of ranks or microbatches.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use common::format::{bytes, count, counted};
use common::terminal::warn;
use common::{Mistakes, Stop, UserError};
use data::{DataError, RecordKind, Source, Split, TokenType, ensure_not_interrupted};
use device::{HostValues, Staging};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{RunFlags, path, train_request};
use super::interruption::interruption;
use trainer::config::RunConfig;
use trainer::config::plan::{ModelPlan, RunPlan, plan_in_steps};
use trainer::error::RunError;
use trainer::run::source::source;

/// The batches to write.
#[derive(Clone, Debug)]
pub struct BatchesRequest {
    /// The run whose batches are written, from the first step to `train.steps`.
    pub config: RunConfig,
    /// The file for the training batches.
    pub output: PathBuf,
    /// The file for the `train.eval_steps` batches of an evaluation, if asked for.
    pub validation: Option<PathBuf>,
}

/// The flags of `trainer batches`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// File for the training batches of all steps: samples of seq_length + 1 tokens end to end.
    #[arg(long, value_name = "FILE", value_parser = path())]
    output: PathBuf,
    /// File for the batches of an evaluation.
    #[arg(long, value_name = "FILE", value_parser = path())]
    validation: Option<PathBuf>,
    #[command(flatten)]
    run: RunFlags,
}

impl Flags {
    /// The batches to write. Everything that is wrong with the flags is added to `mistakes`.
    pub(super) fn request(self, mistakes: &mut Mistakes) -> BatchesRequest {
        let config = train_request(&self.run, &[], mistakes).config;
        BatchesRequest { config, output: self.output, validation: self.validation }
    }
}

/// Writes the batches; returns a summary.
///
/// # Errors
/// Input that is wrong, files that exist, or that cannot be written. No incomplete file is left behind.
pub fn write_batches(request: &BatchesRequest) -> Result<String, RunError> {
    let plan = RunPlan::new(request.config.clone(), 1)?;
    let ModelPlan::Gpt(shape) = plan.model.clone() else {
        let rule = "only a GPT trains on tokens";
        return Err(UserError::new("model.kind = \"mlp\"", rule, "set model.kind = \"gpt\"").into());
    };
    if plan.config.data.kind() != RecordKind::Documents {
        let option = plan.config.data.kind().option();
        let rule = "the file has windows of text, in which every token is a target";
        return Err(UserError::new(
            format!("trainer batches with data.{option}"),
            rule,
            format!("leave --{option} out"),
        )
        .into());
    }
    if let Some(key) = plan.config.data.divides() {
        let rule = "the file has windows of text, in which documents are not told apart";
        return Err(UserError::new(format!("trainer batches with {key}"), rule, "leave it out").into());
    }
    let train = &plan.config.train;
    let files = [
        Some(("--output", &request.output, Split::Train)),
        request.validation.as_ref().map(|path| ("--validation", path, Split::Validation)),
    ];
    if request.validation.is_some() && train.eval_steps == 0 {
        let fix = "set train.eval_steps = 8, or leave --validation out";
        return Err(UserError::new(
            "--validation with train.eval_steps = 0",
            "the file has the batches of an evaluation",
            fix,
        )
        .into());
    }
    if request.validation.as_ref() == Some(&request.output) {
        let what = format!("--output and --validation are both {}", request.output.display());
        return Err(UserError::new(what, "they are two files", "name another").into());
    }
    for (flag, path, ..) in files.iter().flatten() {
        if path.symlink_metadata().is_ok() {
            let what = format!("{flag} {} exists", path.display());
            return Err(UserError::new(what, "no file is overwritten", "name another, or remove it").into());
        }
    }
    // Before there is a file that an interruption could leave behind.
    let stop = interruption()?;
    let mut partial_files = Vec::new();
    for (flag, path, split) in files.into_iter().flatten() {
        partial_files.push((PartialFile::create(flag, path)?, split));
    }
    let source = source(&plan)?;
    let plan = plan_in_steps(plan, &*source)?;
    if request.validation.is_some() && !source.validates() {
        let what = format!("--validation with data.split = {}", plan.config.data.split);
        let fix = "set data.split = 0.9, data.validation_path, or leave --validation out";
        return Err(UserError::new(what, "validation needs data that are not trained on", fix).into());
    }
    source.notices().iter().for_each(|notice| warn(&format!("notice: {notice}")));
    let kind = TokenType::for_vocab(shape.vocab);
    let mut summaries = Vec::new();
    for (partial, split) in partial_files {
        let (steps, samples) = match split {
            Split::Train => (plan.steps, plan.batch.samples_of(plan.steps)),
            Split::Validation => {
                let most = (plan.config.train.eval_steps * plan.batch.global) as u64;
                let samples = source.validation_samples().unwrap_or(most).min(most);
                (samples.div_ceil(plan.batch.global as u64) as usize, samples)
            }
        };
        let batches =
            Samples { source: &*source, split, batch: plan.batch.global, seq: plan.config.model.seq_length, kind };
        summaries.push(batches.write(steps, samples, partial, &stop)?);
    }
    Ok(summaries.join("\n"))
}

/// The samples of one split.
struct Samples<'s> {
    source: &'s dyn Source,
    split: Split,
    /// Samples read at a time.
    batch: usize,
    seq: usize,
    kind: TokenType,
}

impl Samples<'_> {
    /// Writes the samples of `steps` steps to a file. The file gets its name once all are on disk.
    fn write(&self, steps: usize, samples: u64, partial: PartialFile, stop: &Stop) -> Result<String, DataError> {
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
            "{}, {} samples of {} {}-bit tokens, {}, {}; {:.2} s",
            counted(steps, "batch"),
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

/// An incomplete file. Dropping it removes the file, unless the file was renamed.
struct PartialFile {
    /// The name of the complete file.
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl PartialFile {
    /// Creates a temporary file beside the one that `flag` names.
    fn create(flag: &str, path: &Path) -> Result<PartialFile, UserError> {
        let name = path.file_name().map(|name| name.display().to_string()).unwrap_or_default();
        let temporary = path.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        let file = File::create(&temporary).map_err(|error| {
            let rule = "the path is that of a file that can be written";
            UserError::new(format!("{flag} {}: {error}", path.display()), rule, "name a file in a folder that exists")
        })?;
        Ok(PartialFile { path: path.into(), temporary, file })
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // If it was renamed, nothing has this name any more.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
