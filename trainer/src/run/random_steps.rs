//! Training steps on random samples, for measurements.

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::time::Instant;

use data::{RecordKind, SampleCounts};
use device::cuda::Counters;
use device::{Device, Element, HostArray, HostValues, Staging};
use engine::step::{PendingMetrics, Stage};

use crate::config::plan::{BucketPlan, ModelPlan, RunPlan};
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::run::set_up::{stage, step_settings};
use device::random::uniform;

/// The samples that a step works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Samples that are on the device already.
    There,
    /// Samples that are copied to the device first.
    Copied,
}

/// The cost of submitting steps, each to an idle device: medians in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Submission {
    /// The control block, copies and graphs or operations.
    pub launch_us: f64,
    /// All calls of a step, with the read-back of the step's numbers.
    pub issue_us: f64,
}

/// Steps that ran in a row.
pub struct Row {
    /// Of each step, from the end of the one before.
    pub milliseconds: Vec<f64>,
    /// Of the last step.
    pub loss: f64,
    /// The host's counters at the begin of the steps' time, and at the end.
    pub before: Counters,
    /// See `before`.
    pub after: Counters,
}

/// A rank's stage that trains on the same random samples in every step.
pub struct RandomSteps<'r> {
    plan: &'r RunPlan,
    group: &'r ProcessGroup,
    device: &'r Device,
    /// As in training, nothing is torn down on a fault.
    stage: ManuallyDrop<Stage>,
    /// Streams of the device before the stage's streams.
    streams: usize,
    batch: HostValues,
    step: usize,
}

impl<'r> RandomSteps<'r> {
    /// Sets up a stage. All ranks call it together, as all methods.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn new(plan: &'r RunPlan, group: &'r ProcessGroup, device: &'r Device) -> Result<RandomSteps<'r>, RunError> {
        let streams = device.streams_made();
        // All steps have the whole length.
        let whole = RunPlan { buckets: BucketPlan::default(), ..plan.clone() };
        let stage = ManuallyDrop::new(stage(&whole, device, group, false)?);
        stage.let_hooks_read(false);
        let batch = random_batch(plan, &stage.staging(1)?);
        Ok(RandomSteps { plan, group, device, stage, streams, batch, step: 0 })
    }

    /// The stage.
    pub fn stage(&mut self) -> &mut Stage {
        &mut self.stage
    }

    /// Submits the next step; also returns when the step's work was submitted.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn submit(&mut self, inputs: Inputs) -> Result<(PendingMetrics, Instant), RunError> {
        let first = (self.step * self.plan.batch.global) as u64;
        let share = self.plan.batch.share_of_global(first, self.plan.parallel.data_rank(self.group.rank()));
        let global = self.plan.batch.global;
        let kind = self.plan.config.data.kind();
        let pairs = kind.is_judged().then(|| SampleCounts {
            targets: global as u64,
            tokens: (global * self.plan.size.losses_per_sample) as u64,
            documents: if kind == RecordKind::Pairs { 2 } else { 1 } * global as u64,
        });
        let settings = step_settings(&self.plan.optimizer, self.step, share, pairs);
        let losses = self.stage.submit(settings, (inputs == Inputs::Copied).then_some(&self.batch))?;
        let launched = Instant::now();
        self.step += 1;
        Ok((self.stage.metrics(losses)?, launched))
    }

    /// Runs a step to the end; returns the step's loss.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn step(&mut self, inputs: Inputs) -> Result<f64, RunError> {
        Ok(self.submit(inputs)?.0.wait()?.loss)
    }

    /// Submits `steps` steps, each to an idle device.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn submissions(&mut self, steps: usize, inputs: Inputs) -> Result<Submission, RunError> {
        let (mut launches, mut issues) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            self.device.synchronize()?;
            let started = Instant::now();
            let (pending, launched) = self.submit(inputs)?;
            issues.push(started.elapsed().as_secs_f64() * 1e6);
            launches.push(launched.duration_since(started).as_secs_f64() * 1e6);
            pending.wait()?;
        }
        Ok(Submission { launch_us: median(launches), issue_us: median(issues) })
    }

    /// Runs `steps` steps in a row, as a training run does: the host is a step ahead. Two more run, one before the first
    /// that is timed and one after the last: the device is busy at the begin and at the end of the time.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn in_a_row(&mut self, steps: usize) -> Result<Row, RunError> {
        self.group.control.barrier();
        self.device.synchronize()?;
        let first = self.submit(Inputs::There)?.0;
        let mut in_flight = self.submit(Inputs::There)?.0;
        let mut loss = first.wait()?.loss;
        let before = self.device.counters();
        let mut ends = vec![Instant::now()];
        for _ in 0..steps {
            let submitted = self.submit(Inputs::There)?.0;
            loss = std::mem::replace(&mut in_flight, submitted).wait()?.loss;
            ends.push(Instant::now());
        }
        let after = self.device.counters();
        in_flight.wait()?;
        let each = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3).collect();
        Ok(Row { milliseconds: each, loss, before, after })
    }

    /// Frees the stage, with all memory that the steps took.
    ///
    /// # Errors
    /// The device's.
    pub fn end(self) -> Result<(), RunError> {
        drop(ManuallyDrop::into_inner(self.stage));
        Ok(self.device.free_scratch_since(self.streams)?)
    }
}

/// The median; the larger of the two in the middle of an even number.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Random samples for a rank's share of a step.
fn random_batch(plan: &RunPlan, staging: &Staging) -> HostValues {
    let row = plan.sample_row();
    let values = plan.batch.microbatches() * plan.batch.micro * row.width;
    // A sample is one document, one pair of answers as long as each other, or one desirable answer, without padding.
    let position_ids = row.documents.map_or(0..0, |documents| documents.position_ids);
    let seq = row.inputs.len();
    let is_labelled = row.mismatched.is_some();
    let (pairs, document) = match row.pairs {
        Some(pairs) => (pairs.columns, if is_labelled { seq } else { seq / 2 }),
        None => (0..0, seq),
    };
    let of_row = row.mismatched.unwrap_or(row.width);
    let logp = (-(seq as f32)).to_bits() as i32;
    let pair = [document as i32, seq as i32, logp, if is_labelled { 0 } else { logp }];
    match &plan.model {
        ModelPlan::Gpt(shape) => {
            let token = |at: usize, x: f32| match at % row.width % of_row {
                column if position_ids.contains(&column) => ((column - position_ids.start) % document) as i32,
                column if pairs.contains(&column) => pair.get(column - pairs.start).copied().unwrap_or(0),
                column if row.real == Some(column) => seq as i32,
                _ => (x * shape.vocab as f32) as i32 % shape.vocab as i32,
            };
            HostValues::I32(random_array(staging, values, token))
        }
        ModelPlan::Mlp(_) => HostValues::F32(random_array(staging, values, |_, x| 2.0 * x - 1.0)),
    }
}

/// An array of `value(at, x)` for random `x` in [0, 1).
fn random_array<T: Element>(staging: &Staging, count: usize, value: impl Fn(usize, f32) -> T) -> HostArray<T> {
    let Ok(array) = staging.array(count, |values: &mut [T]| {
        values.iter_mut().enumerate().for_each(|(at, to)| *to = value(at, uniform(1, at as u64)));
        Ok::<(), Infallible>(())
    });
    array
}
