//! What people are told of steps.

use std::time::{Duration, Instant};

use common::terminal::{PRINTED, say, warn};
use device::Device;
use engine::step::{PendingMetrics, StepResult};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::config::plan::{ModelPlan, RunPlan};
use crate::error::{RunError, file_error};
use crate::report::metrics::StepMetrics;
use crate::report::run_log::RunLog;
use crate::run::accelerator::peak_tflops;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Loss of the last step.
    pub loss: f64,
    /// Whether that is a number on every rank: else what was trained is worth nothing.
    pub finite: bool,
    /// Loss of the last evaluation, if there was one.
    pub validation_loss: Option<f64>,
    /// The source's floor, where it is known.
    pub floor: Option<f64>,
}

/// A step that was submitted.
pub(crate) struct StepUnderWay {
    pub(crate) step: usize,
    /// Over all ranks.
    pub(crate) samples: usize,
    pub(crate) metrics: PendingMetrics,
    pub(crate) started: Instant,
    /// What the host took to submit it.
    pub(crate) host: Duration,
    /// What it waited for its batch.
    pub(crate) data_wait: Duration,
}

impl StepUnderWay {
    /// Waits for its numbers. It took from when it was submitted, or the step before it ended, until now; on the host
    /// device, which ends a step before it is waited for, as long as its submission.
    pub(crate) fn wait(self, before_ended: &mut Option<Instant>) -> Result<StepDone, RunError> {
        let result = self.metrics.wait()?;
        let ended = Instant::now();
        let began = before_ended.replace(ended).map_or(self.started, |before| before.max(self.started));
        Ok(StepDone {
            step: self.step,
            samples: self.samples,
            result,
            seconds: ended.duration_since(began).max(self.host).as_secs_f64().max(1e-9),
            host: self.host,
            data_wait: self.data_wait,
        })
    }
}

/// A step that is done.
pub(crate) struct StepDone {
    pub(crate) step: usize,
    pub(crate) samples: usize,
    result: StepResult,
    seconds: f64,
    pub(crate) host: Duration,
    pub(crate) data_wait: Duration,
}

/// Peak FLOP/s of all ranks' GPUs, where it is known.
pub(crate) fn peak_flops(plan: &RunPlan, device: &Device) -> Option<f64> {
    let peak = peak_tflops(&device.gpu()?.name, &plan.config.precision.compute)?;
    Some(peak * 1e12 * plan.grid.ranks() as f64)
}

/// So many updates skipped one after another, for their gradients were not finite, and training has diverged. One may come
/// of a batch; after more the next ones, with the same weights, are no better.
const MOST_SKIPPED: usize = 10;

/// Tells people of steps, and writes them down.
pub(crate) struct Reporter<'p> {
    plan: &'p RunPlan,
    /// Where steps are written, on rank 0.
    log: Option<RunLog>,
    /// Why they are not any more. The run ends with it, once it has saved what it has.
    trouble: Option<RunError>,
    /// Updates skipped since the last that was applied.
    skipped: usize,
    /// A progress bar on a terminal, lines elsewhere; nothing but on rank 0.
    bar: Option<ProgressBar>,
    memory: usize,
    /// Peak FLOP/s, where it is known.
    peak: Option<f64>,
    pub(crate) last_loss: f64,
    pub(crate) last_validation: Option<f64>,
}

impl<'p> Reporter<'p> {
    /// Of a run that begins at step `start`; with a log on rank 0 alone.
    pub(crate) fn new(
        plan: &'p RunPlan,
        log: Option<RunLog>,
        memory: usize,
        peak: Option<f64>,
        start: usize,
    ) -> Reporter<'p> {
        let bar = log.is_some().then(|| {
            let bar = ProgressBar::with_draw_target(Some(plan.config.train.steps as u64), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed} of {eta} left  {msg}") {
                bar.set_style(style);
            }
            bar.set_position(start as u64);
            bar
        });
        let (trouble, skipped) = (None, 0);
        Reporter { plan, log, trouble, skipped, bar, memory, peak, last_loss: f64::NAN, last_validation: None }
    }

    pub(crate) fn say(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.suspend(|| say(text));
            tracing::info!(target: PRINTED, "{text}");
        }
    }

    /// Tells a step's numbers and writes them down.
    pub(crate) fn tell(&mut self, done: &StepDone, validation_loss: Option<f64>) {
        let StepDone { step, samples, ref result, seconds, host, data_wait } = *done;
        self.last_loss = result.loss;
        self.skipped = if result.applied { 0 } else { self.skipped + 1 };
        self.last_validation = validation_loss.or(self.last_validation);
        let tokens_per_s = (samples * self.plan.losses_per_sample) as f64 / seconds;
        let metrics = StepMetrics {
            step,
            loss: result.loss,
            grad_norm: result.grad_norm,
            lr: self.plan.schedule.at(step),
            tokens_per_s,
            tflops: tokens_per_s * self.plan.flops_per_token / 1e12,
            mfu: self.peak.map(|peak| tokens_per_s * self.plan.flops_per_token / peak),
            step_ms: seconds * 1e3,
            host_ms: host.as_secs_f64() * 1e3,
            data_wait_ms: data_wait.as_secs_f64() * 1e3,
            memory_bytes: self.memory,
            validation_loss,
            validation_perplexity: validation_loss.and_then(|loss| self.perplexity(loss)),
        };
        let steps = self.plan.config.train.steps;
        let line = metrics.line(steps);
        let due = (step + 1) % self.plan.config.logging.interval == 0 || step == 0 || step + 1 == steps;
        if due || validation_loss.is_some() || !result.applied {
            self.say(&line);
        }
        if !result.applied {
            self.say(&format!("step {}: the gradient is not finite, the update was skipped", step + 1));
        }
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.set_message(format!("loss {:.4}", result.loss));
        }
        self.write("the metrics", |log| log.write(&metrics));
    }

    /// Sees to it that the disk has the steps told so far.
    pub(crate) fn sync(&mut self) {
        self.write("the metrics", RunLog::sync);
    }

    /// Does it with the log; after a failure nothing more is written.
    fn write(&mut self, what: &str, write: impl FnOnce(&mut RunLog) -> std::io::Result<()>) {
        let Some(Err(error)) = self.log.as_mut().map(write) else { return };
        self.log = None;
        self.trouble = Some(file_error(format!("{what} in {}", self.plan.config.logging.dir))(error));
    }

    /// Whether going on is of no use, the same on all ranks.
    pub(crate) fn has_diverged(&self) -> bool {
        self.skipped >= MOST_SKIPPED
    }

    /// Whether the state is worth as much as that of steps before.
    pub(crate) fn is_sound(&self) -> bool {
        self.skipped == 0 && self.last_loss.is_finite()
    }

    /// Whether this rank must end the run.
    pub(crate) fn is_stuck(&self) -> bool {
        self.trouble.is_some() || self.has_diverged()
    }

    /// Writes what is written once, at the end.
    ///
    /// # Errors
    /// What could not be written, then or before.
    pub(crate) fn close(&mut self) -> Result<(), RunError> {
        self.write("wandb-summary.json", RunLog::finish);
        self.trouble.take().map_or(Ok(()), Err)
    }

    /// Of a loss in nats a token; a model of rows has none.
    fn perplexity(&self, loss: f64) -> Option<f64> {
        matches!(self.plan.model, ModelPlan::Gpt(_)).then(|| loss.exp())
    }

    pub(crate) fn finish(&self, outcome: &Outcome) {
        let Some(bar) = &self.bar else { return };
        bar.finish_and_clear();
        if !outcome.finite {
            let kept = if self.plan.config.checkpoint.dir.is_some() { " Checkpoints are kept." } else { "" };
            let skipped = format!("{} updates in turn were skipped, for their gradients were not finite", self.skipped);
            let what =
                if self.has_diverged() { skipped } else { format!("the loss of the last step is {}", outcome.loss) };
            warn(&format!(
                "error: {what}: training diverged.{kept} Fix: go on from a checkpoint before that, or begin anew, with a \
                 smaller optimizer.lr"
            ));
            return;
        }
        let mut line = format!("done: loss {:.4}", outcome.loss);
        if let Some(loss) = outcome.validation_loss {
            line += &format!(", validation loss {loss:.4}");
            if let Some(perplexity) = self.perplexity(loss) {
                line += &format!(", perplexity {perplexity:.2}");
            }
            if let Some(floor) = outcome.floor {
                line += &format!(", {}", beside_floor(loss, floor));
            }
        }
        say(&line);
        tracing::info!(target: PRINTED, "{line}");
    }
}

/// Where a loss lies; on few samples it may fall below what is possible on all.
fn beside_floor(loss: f64, floor: f64) -> String {
    let above = (loss / floor - 1.0) * 100.0;
    let side = if above < 0.0 { "below" } else { "above" };
    format!("{:.1} % {side} the floor of {floor:.4}", above.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_above_or_below_its_floor_by_a_share_without_a_sign() {
        assert_eq!(beside_floor(2.1, 2.0), "5.0 % above the floor of 2.0000");
        assert_eq!(beside_floor(1.972, 2.0), "1.4 % below the floor of 2.0000");
    }
}
