//! Reports steps as a run goes: on the console, and in the run's files.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::format::{counted, duration};
use common::terminal::{PRINTED, columns, say, shows_status, warn};
use device::Device;
use engine::fp8::TensorCounts;
use engine::precision::Precision;
use engine::step::{BlockLoad, StepResult};
use parallel::Axis;

use crate::checkpoint::{ChangedSettings, Progress};
use crate::config::LoggingConfig;
use crate::config::plan::{LearningRate, ModelPlan, RunPlan};
use crate::error::{RunError, file_error};
use crate::report::fp8_losses::Fp8Watch;
use crate::report::gpu_peak::peak_tflops;
use crate::report::metrics::StepMetrics;
use crate::report::progress::ProgressLine;
use crate::report::run_log::RunLog;
use crate::report::samples::{SAMPLES, SampleText, StepSamples};
use crate::report::time_left::TimeLeft;
use crate::told::{say_and_log, tell};

/// The losses of an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// Of the run's validation data.
    pub loss: f64,
    /// The means of the evaluation's pairs of answers.
    pub of_pairs: BTreeMap<String, f64>,
    /// Of each further data set, by name.
    pub sets: BTreeMap<String, f64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Loss of the last step.
    pub loss: f64,
    /// Whether the losses of all ranks are finite. If not, training diverged.
    pub finite: bool,
    /// Loss of the last evaluation, if there was one.
    pub validation_loss: Option<f64>,
    /// The lowest loss that the data allow, if known.
    pub floor: Option<f64>,
}

/// A step that the device has finished.
pub(crate) struct FinishedStep {
    /// The run's steps and samples after the step, earlier processes included.
    pub(crate) progress: Progress,
    /// Samples over all ranks.
    pub(crate) samples: usize,
    /// Tokens of a sample, if fewer than the model's.
    pub(crate) length: Option<usize>,
    pub(crate) result: StepResult,
    /// The losses of this rank's 8-bit copies, if measured in the step.
    pub(crate) counts: Option<Vec<TensorCounts>>,
    /// Wall time.
    pub(crate) seconds: f64,
    /// The host's time to prepare and submit the step.
    pub(crate) host: Duration,
    /// The host's wait for the step's batch.
    pub(crate) data_wait: Duration,
}

/// Peak FLOP/s of `ranks` GPUs, if known.
pub(crate) fn peak_flops(device: &Device, precision: Precision, ranks: usize) -> Option<f64> {
    let peak = peak_tflops(&device.gpu()?.name, precision)?;
    Some(peak * 1e12 * ranks as f64)
}

/// After so many consecutive skipped updates (non-finite gradients) training has diverged. One may come from a single batch.
/// More of them will not end, because the weights stay the same.
const MOST_SKIPPED: usize = 10;

/// Reports steps on the console and in the run's files.
pub(crate) struct Reporter<'p> {
    logging: &'p LoggingConfig,
    /// Steps of the run.
    steps: usize,
    plan: &'p RunPlan,
    learning_rate: LearningRate,
    /// Whether losses are per token and so have a perplexity.
    has_perplexity: bool,
    saves_checkpoints: bool,
    /// The run's files, on rank 0.
    log: Option<RunLog>,
    /// Settings that changed since the checkpoint that this process went on from, until a step is reported.
    changed_settings: ChangedSettings,
    /// Why a file was not written. The run saves its state and ends with this error.
    write_error: Option<RunError>,
    /// Consecutive updates skipped because of non-finite gradients.
    skipped: usize,
    /// All updates skipped in this run.
    all_skipped: u32,
    /// Looks for tensors that 8 bits do not suit; on the first rank of each stage.
    fp8_watch: Option<Fp8Watch>,
    progress: ProgressLine,
    time_left: TimeLeft,
    /// When this process began to train.
    began: Instant,
    /// Planned device memory of this rank, bytes.
    memory: usize,
    /// Peak FLOP/s of all ranks, if known.
    peak: Option<f64>,
    pub(crate) last_loss: f64,
    pub(crate) last_validation: Option<f64>,
}

impl<'p> Reporter<'p> {
    /// The reporter of a process. Rank 0 passes a `log`, and is the only one to print, with one exception: each rank
    /// prints the warnings of its own `fp8_watch`.
    pub(crate) fn new(
        plan: &'p RunPlan,
        (log, changed_settings): (Option<RunLog>, ChangedSettings),
        fp8_watch: Option<Fp8Watch>,
        memory: usize,
        peak: Option<f64>,
    ) -> Reporter<'p> {
        let steps = plan.steps;
        let intervals = [plan.evaluation.map_or(0, |plan| plan.interval), plan.config.checkpoint.interval];
        let settling = if plan.graphs.enable { plan.graphs.warmup_steps + 1 } else { 1 };
        Reporter {
            logging: &plan.config.logging,
            steps,
            plan,
            learning_rate: plan.optimizer.learning_rate,
            has_perplexity: matches!(plan.model, ModelPlan::Gpt(_)) && !plan.config.data.kind().is_judged(),
            saves_checkpoints: plan.config.checkpoint.dir.is_some(),
            log,
            changed_settings,
            write_error: None,
            skipped: 0,
            all_skipped: 0,
            fp8_watch,
            progress: ProgressLine::default(),
            time_left: TimeLeft::new(intervals, settling),
            began: Instant::now(),
            memory,
            peak,
            last_loss: f64::NAN,
            last_validation: None,
        }
    }

    /// Prints a line on rank 0 and adds the line to the logs.
    pub(crate) fn say(&self, text: &str) {
        if self.log.is_some() {
            say_and_log(text);
        }
    }

    /// Reports a step, with the losses of the evaluation after the step, if any.
    pub(crate) fn report_step(&mut self, done: &FinishedStep, validation: Option<Validation>) {
        let (validation_loss, validation_pairs, validation_sets) = match validation {
            Some(Validation { loss, of_pairs, sets }) => (Some(loss), of_pairs, sets),
            None => (None, BTreeMap::new(), BTreeMap::new()),
        };
        let FinishedStep { progress, samples, length, ref result, ref counts, seconds, host, data_wait } = *done;
        let step = progress.step;
        self.last_loss = result.loss;
        self.skipped = if result.applied || result.spike { 0 } else { self.skipped + 1 };
        self.all_skipped = result.skipped;
        self.last_validation = validation_loss.or(self.last_validation);
        self.time_left.step_ended(Instant::now());
        let tokens_per_s = (samples * length.unwrap_or(self.plan.size.losses_per_sample)) as f64 / seconds;
        let flops = tokens_per_s * self.plan.flops_per_token(length);
        let expert_ranks = self.plan.parallel.mesh.size(Axis::Expert);
        let of_ranks = result.expert_loads.iter().map(|load| load.imbalance_of_ranks(expert_ranks));
        let metrics = StepMetrics {
            step,
            changed_settings: std::mem::take(&mut self.changed_settings),
            samples: progress.samples,
            seq_length: (!self.plan.buckets.shorter().is_empty())
                .then(|| length.unwrap_or(self.plan.size.losses_per_sample)),
            loss: result.loss,
            added: result.added.iter().chain(&result.of_pairs).map(|(name, mean)| (name.to_string(), *mean)).collect(),
            expert_imbalance: result.expert_loads.iter().map(BlockLoad::imbalance).reduce(f64::max),
            rank_imbalance: (expert_ranks > 1).then(|| of_ranks.reduce(f64::max)).flatten(),
            dropped_choices: result
                .expert_loads
                .iter()
                .filter_map(|load| load.dropped)
                .map(f64::from)
                .reduce(|all, one| all + one),
            ran_again: result.ran_again,
            expert_loads: if self.is_due(step) { result.expert_loads.clone() } else { Vec::new() },
            grad_norm: result.grad_norm,
            skipped: result.skipped,
            lr: self.learning_rate.at(step - 1),
            tokens_per_s,
            tflops: flops / 1e12,
            mfu: self.peak.map(|peak| flops / peak),
            step_ms: seconds * 1e3,
            host_ms: host.as_secs_f64() * 1e3,
            data_wait_ms: data_wait.as_secs_f64() * 1e3,
            memory_bytes: self.memory,
            validation_loss,
            validation_perplexity: validation_loss.and_then(|loss| self.perplexity(loss)),
            validation_pairs,
            validation_sets,
            fp8: result.fp8,
        };
        if self.is_due(step) || validation_loss.is_some() || !result.applied {
            self.say_step(&metrics);
        }
        for (name, loss) in &metrics.validation_sets {
            self.say(&format!("  validation of {name} {loss:.4}  perplexity {:.2}", loss.exp()));
        }
        if !result.applied {
            let why = if result.spike { "loss or gradient norm is a spike" } else { "the gradients are not finite" };
            self.say(&format!("step {step}: the update was skipped, because {why}"));
        }
        if let (Some(watch), Some(counts)) = (&mut self.fp8_watch, counts) {
            for warning in watch.look(counts) {
                tell(&format!("WARNING: step {step}: {warning}"));
            }
        }
        if self.log.is_some() {
            self.progress.show(step, self.steps, self.left(step).as_deref(), result.loss);
        }
        self.write("the metrics", |log| log.write(&metrics));
    }

    /// Reports the texts that the model wrote after so many steps.
    pub(crate) fn report_samples(&mut self, step: usize, samples: Vec<SampleText>) {
        samples.iter().for_each(|sample| self.say(&sample.line()));
        self.write(SAMPLES, |log| log.write_samples(&StepSamples { step, samples }));
    }

    /// Whether a step has a line of its own, counted from 1.
    pub(crate) fn is_due(&self, step: usize) -> bool {
        step.is_multiple_of(self.logging.interval) || step == 1 || step == self.steps
    }

    /// Prints a step's line on rank 0. On a terminal the line at the bottom tells the time left, and numbers that do not fit
    /// are left out; the log has them all.
    fn say_step(&self, metrics: &StepMetrics) {
        if self.log.is_some() {
            let left = self.left(metrics.step);
            let left = left.as_deref();
            say(&metrics.line(self.steps, left.filter(|_| !shows_status()), columns()));
            tracing::info!(target: PRINTED, "{}", metrics.line(self.steps, left, None));
        }
    }

    /// The time that the steps after this step will take, in words. None after the last step.
    fn left(&self, step: usize) -> Option<String> {
        let steps = self.steps.saturating_sub(step);
        self.time_left.of(steps).filter(|_| steps > 0).map(|time| duration(time.as_secs_f64()))
    }

    /// Waits until the reported steps are on disk. Returns the lines of metrics that cannot be written; none on other ranks.
    pub(crate) fn sync(&mut self) -> Vec<u8> {
        self.write("the metrics", RunLog::sync);
        self.log.as_ref().map(RunLog::missing).unwrap_or_default()
    }

    /// Writes to the files. The first failure ends the run.
    fn write(&mut self, what: &str, write: impl FnOnce(&mut RunLog) -> std::io::Result<()>) {
        let Some(Err(error)) = self.log.as_mut().map(write) else { return };
        let what = format!("{what} in {}", self.logging.dir);
        self.write_error.get_or_insert_with(|| file_error(what)(error));
    }

    /// Whether training has diverged. The answer is the same on all ranks.
    pub(crate) fn has_diverged(&self) -> bool {
        self.skipped >= MOST_SKIPPED
    }

    /// Whether the last update was applied and the last loss is finite, so that the state is worth a checkpoint.
    pub(crate) fn is_sound(&self) -> bool {
        self.skipped == 0 && self.last_loss.is_finite()
    }

    /// Whether this rank must end the run.
    pub(crate) fn must_stop(&self) -> bool {
        self.write_error.is_some() || self.has_diverged()
    }

    /// Writes the files that are written once, at the end.
    ///
    /// # Errors
    /// The first error of writing, now or earlier.
    pub(crate) fn close(&mut self) -> Result<(), RunError> {
        self.sync();
        self.write("wandb-summary.json", RunLog::finish);
        self.write_error.take().map_or(Ok(()), Err)
    }

    /// The perplexity of a loss in nats per token.
    fn perplexity(&self, loss: f64) -> Option<f64> {
        self.has_perplexity.then(|| loss.exp())
    }

    /// Prints how the run ended, on rank 0.
    pub(crate) fn finish(&mut self, outcome: &Outcome) {
        if self.log.is_none() {
            return;
        }
        self.progress.clear();
        if !outcome.finite {
            let checkpoints = if self.saves_checkpoints { " Earlier checkpoints are kept." } else { "" };
            let cause = if self.has_diverged() {
                format!("{} consecutive updates were skipped because of non-finite gradients", self.skipped)
            } else {
                format!("the loss of the last step is {}", outcome.loss)
            };
            let line = format!(
                "error: {cause}: training diverged.{checkpoints} Fix: resume from an earlier checkpoint, or start again, \
                 with a smaller optimizer.lr"
            );
            warn(&line);
            tracing::error!(target: PRINTED, "{line}");
            return;
        }
        let mut line = format!("done: loss {:.4}", outcome.loss);
        if let Some(loss) = outcome.validation_loss {
            line += &format!(", validation loss {loss:.4}");
            if let Some(perplexity) = self.perplexity(loss) {
                line += &format!(", perplexity {perplexity:.2}");
            }
            if let Some(floor) = outcome.floor {
                line += &format!(", {}", relative_to_floor(loss, floor));
            }
        }
        if self.all_skipped > 0 {
            line += &format!(", {} skipped", counted(self.all_skipped as usize, "update"));
        }
        self.say(&format!("{line}, in {}", duration(self.began.elapsed().as_secs_f64())));
    }
}

/// The distance of a loss from the floor. The floor holds for all samples, so on few samples the loss may fall below
/// it.
fn relative_to_floor(loss: f64, floor: f64) -> String {
    let above = (loss / floor - 1.0) * 100.0;
    let side = if above < 0.0 { "below" } else { "above" };
    format!("{:.1} % {side} the floor of {floor:.4}", above.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_above_or_below_its_floor_by_a_share_without_a_sign() {
        assert_eq!(relative_to_floor(2.1, 2.0), "5.0 % above the floor of 2.0000");
        assert_eq!(relative_to_floor(1.972, 2.0), "1.4 % below the floor of 2.0000");
    }
}
