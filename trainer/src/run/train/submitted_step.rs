//! A step between submission and end.

use std::time::{Duration, Instant};

use engine::fp8::PendingCounts;
use engine::step::PendingMetrics;

use crate::checkpoint::Progress;
use crate::error::RunError;
use crate::report::reporter::FinishedStep;

/// A step that was submitted to the device, and may not have ended.
pub(super) struct SubmittedStep {
    /// The run's steps and samples after the step, earlier processes included.
    pub(super) progress: Progress,
    /// The step's samples over all ranks.
    pub(super) samples: usize,
    /// Tokens of a sample, if fewer than the model's.
    pub(super) length: Option<usize>,
    pub(super) metrics: PendingMetrics,
    /// The losses of this rank's 8-bit copies, if measured in the step.
    pub(super) counts: Option<PendingCounts>,
    pub(super) started: Instant,
    /// The host's time to prepare and submit the step.
    pub(super) host: Duration,
    /// The host's wait for the step's batch.
    pub(super) data_wait: Duration,
}

impl SubmittedStep {
    /// Waits for the step's end. `last_end` is the end of the step before, and becomes that of this one.
    ///
    /// A step's time begins when the host starts it, or when the step before ends if that is later. It is at least the time
    /// of submission, because the host device computes during submission.
    pub(super) fn wait(self, last_end: &mut Option<Instant>) -> Result<FinishedStep, RunError> {
        let result = self.metrics.wait()?;
        let counts = self.counts.map(PendingCounts::wait).transpose()?;
        let end = Instant::now();
        let start = last_end.replace(end).map_or(self.started, |last| last.max(self.started));
        Ok(FinishedStep {
            progress: self.progress,
            samples: self.samples,
            length: self.length,
            result,
            counts,
            seconds: end.duration_since(start).max(self.host).as_secs_f64().max(1e-9),
            host: self.host,
            data_wait: self.data_wait,
        })
    }
}
