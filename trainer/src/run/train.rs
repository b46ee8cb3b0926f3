//! A training run, from the first to the last step.
//!
//! [`train`] prepares a run, [`Trainer::run`] is the loop over steps, and [`Trainer::train_step`] is one step.

mod end;
mod order;
mod submitted_step;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::files::write_file;
use common::format::{boxed, counted};
use common::terminal::{PRINTED, columns, say};
use data::{BATCHES_IN_MEMORY, Prefetch, Source, Split};
use device::{Device, SyncDebug};
use engine::fp8::Fp8Recipe;
use engine::regions::Mode;
use engine::step::{Stage, StepSettings};
use launch::watch::activity::Doing;

use self::end::{LastState, stops_early};
use self::order::tell_order;
use self::submitted_step::SubmittedStep;
use crate::checkpoint::{KeptFile, Occasion, Progress, Session, Validated};
use crate::config::SyncDebugChoice;
use crate::config::plan::RunPlan;
use crate::config::request::TrainRequest;
use crate::error::{RunError, file_error};
use crate::process_group::ProcessGroup;
use crate::report::fp8_losses::Fp8Watch;
use crate::report::reporter::{FinishedStep, Outcome, Reporter, Validation, peak_flops};
use crate::report::run_log::RunLog;
use crate::report::summary::{PLAN, summary};
use crate::report::wandb_client::Client;
use crate::run::consistency::check_data;
use crate::run::evaluate::{EvaluationSet, Means, of_set, validation_means};
use crate::run::references::{Moment, set_references};
use crate::run::run_folder::CONFIG;
use crate::run::samples::{Prompts, SampleWriter};
use crate::run::set_up::{load_start, stage, step_settings};
use crate::run::trace::StepTrace;
use crate::run::verify::VerifiedSteps;
use crate::run::{auto_scope, run_folder};

/// The most columns of a plan that is not printed on a terminal.
const PLAN_COLUMNS: usize = 100;

/// A step whose submission takes longer than this is waited for before the next one. Its launches fill the driver's queue,
/// so the host waits for the device in any case. The console would be a whole step late.
const LONG_SUBMISSION: Duration = Duration::from_secs(2);

/// Trains as planned, on data that [`source()`](crate::run::source::source) opened, and evaluates on further
/// [sets](crate::run::source::validation_sets). `files` are the [files](crate::run::set_up::source_files) of the model that a
/// new run begins with; only rank 0's are used. Returns `None` if nothing was trained: in a dry run, or if the run already has
/// all its steps.
///
/// # Errors
/// See [`RunError`].
pub fn train(
    plan: &RunPlan,
    request: &TrainRequest,
    group: &ProcessGroup,
    device: &Device,
    (source, sets, files): (Arc<dyn Source>, &[EvaluationSet], &[KeptFile]),
) -> Result<Option<Outcome>, RunError> {
    let mut session = if request.dry_run {
        None
    } else {
        for set in sets {
            check_data(group, &set.source)?;
        }
        let mut session = Session::open(plan, group, check_data(group, &*source)?, source.copies())?;
        if session.begins_anew() {
            session.keep_source(files.to_vec());
        }
        session.compute_alike(device);
        Some(session)
    };
    let plan = &auto_scope::resolve(plan, group, device)?;
    // A timeline is prepared before the first graph. It comes first also because it may fail, and all other work would then
    // be in vain.
    let first_step = session.as_ref().map(|session| session.progress().step);
    let trace = first_step
        .map(|step| StepTrace::prepare(&plan.config.logging, &plan.graphs, group, device, step))
        .transpose()?;
    // On a fault nothing is torn down. To free memory that the device still uses, this rank would wait for the device, and
    // the device may wait for other ranks: for ever, and before anybody was told of the fault.
    let begins_anew = session.as_ref().is_none_or(Session::begins_anew);
    let mut stage = ManuallyDrop::new(stage(plan, device, group, !begins_anew)?);
    if let Some(session) = &mut session {
        session.lock_memory(&stage, plan.steps)?;
    }
    if begins_anew {
        load_start(plan, device, &stage)?;
    }
    if session.is_some() {
        let moment = if begins_anew { Moment::BeforeTheFirstStep } else { Moment::Later };
        set_references(plan, group, &mut stage, &*source, moment)?;
    }
    // Before the plan is told: it has their memory.
    let prompts = if group.rank() == 0 { Prompts::open(plan, &*source)? } else { None };
    let samples = prompts.map(|prompts| SampleWriter::new(prompts, device, &stage)).transpose()?;
    if group.rank() == 0 {
        let rows = summary(plan, &mut stage, &*source, device, group);
        say(&boxed(PLAN, &rows, columns().or(Some(PLAN_COLUMNS))));
        tracing::info!(target: PRINTED, "{}", boxed(PLAN, &rows, Some(PLAN_COLUMNS)));
    }
    let outcome = match (session, trace) {
        (Some(session), Some(trace)) => {
            match Trainer::start(plan, group, device, (source, sets, samples), session, trace, &mut stage)? {
                Some(mut trainer) => {
                    trainer.began = request.began;
                    trainer.run()?;
                    Some(trainer.finish(request.graph_report.as_deref())?)
                }
                None => None,
            }
        }
        _ => None,
    };
    drop(ManuallyDrop::into_inner(stage));
    Ok(outcome)
}

/// A run in progress.
struct Trainer<'r> {
    plan: &'r RunPlan,
    group: &'r ProcessGroup,
    device: &'r Device,
    stage: &'r mut Stage,
    source: Arc<dyn Source>,
    /// Further data to evaluate on.
    sets: &'r [EvaluationSet],
    /// The model as a writer, on rank 0, if the run writes samples.
    samples: ManuallyDrop<Option<SampleWriter>>,
    /// `None` on the stages that need no samples.
    batches: Option<Prefetch>,
    session: Session<'r>,
    validated: Validated,
    trace: StepTrace,
    verified: VerifiedSteps,
    /// The lengths of samples whose graphs a line was about.
    graphs_told: BTreeSet<usize>,
    report: Reporter<'r>,
    /// The step at which this process started.
    first_step: usize,
    /// The time at which the process read the command line.
    began: Instant,
    /// The steps and samples submitted so far, earlier processes included.
    progress: Progress,
    /// The last submitted step, if the host has not waited for that step yet.
    in_flight: Option<SubmittedStep>,
    /// The end of the last step that the host has waited for.
    last_end: Option<Instant>,
}

impl<'r> Trainer<'r> {
    /// Restores the checkpoint of the session, opens the run's files and starts to read batches. Returns `None` if the run
    /// already has all its steps.
    fn start(
        plan: &'r RunPlan,
        group: &'r ProcessGroup,
        device: &'r Device,
        (source, sets, samples): (Arc<dyn Source>, &'r [EvaluationSet], Option<SampleWriter>),
        mut session: Session<'r>,
        trace: StepTrace,
        stage: &'r mut Stage,
    ) -> Result<Option<Trainer<'r>>, RunError> {
        let progress = session.progress();
        let steps = plan.steps;
        if progress.step >= steps {
            if group.rank() == 0 {
                let done = progress.step;
                say(&format!(
                    "done before: {done} of {}. To continue, set a larger train.steps",
                    counted(steps, "step")
                ));
            }
            return Ok(None);
        }
        let validated = session.validated();
        if let Some(why) = stops_early(plan, &validated) {
            if group.rank() == 0 {
                say(&format!("ended before, after step {}: {why}", progress.step));
            }
            return Ok(None);
        }
        if group.rank() == 0 {
            tell_order(plan, &session, &*source)?;
        }
        session.restore(stage)?;
        tracing::info!("start: the state is there");
        if plan.parallel.mesh.ranks() > 1 || session.saves_soon(progress.step) {
            session.await_memory();
        }
        let log = (group.rank() == 0).then(|| open_log(plan, &session)).transpose()?;
        let peak = peak_flops(device, plan.config.precision.compute, plan.parallel.mesh.ranks());
        let report = Reporter::new(
            plan,
            (log, session.changed_settings()),
            fp8_watch(plan, group),
            device.allocated_bytes(),
            peak,
        );
        tracing::info!(rank = group.rank(), threads = group.threads, "training begins");
        let batches = match stage.needs_batch() {
            true => Some(prefetch(plan, group.rank(), source.clone(), progress, stage)?),
            false => None,
        };
        group.stop.heed();
        let (first_step, in_flight, last_end) = (progress.step, None, None);
        Ok(Some(Trainer {
            plan,
            group,
            device,
            stage,
            source,
            sets,
            samples: ManuallyDrop::new(samples),
            batches,
            session,
            validated,
            trace,
            verified: VerifiedSteps::default(),
            graphs_told: BTreeSet::new(),
            report,
            first_step,
            began: Instant::now(),
            progress,
            in_flight,
            last_end,
        }))
    }

    /// Trains until the last step, or until the run has to stop.
    fn run(&mut self) -> Result<(), RunError> {
        while self.progress.step < self.plan.steps {
            let _span = tracing::info_span!("step", step = self.progress.step + 1).entered();
            let _range = self.device.nvtx_range(|| format!("step {}", self.progress.step + 1));
            self.train_step()?;
            let best = self.evaluate_if_due()?;
            self.write_samples_if_due()?;
            if self.in_flight.as_ref().is_some_and(|step| step.host > LONG_SUBMISSION) {
                self.report_in_flight()?;
            }
            let new = self.session.saved()?;
            self.prune(new);
            let stop = self.stops();
            let state = self.save_if_due(stop.is_some(), best)?;
            if let Some(why) = stop.filter(|_| self.progress.step < self.plan.steps) {
                self.say_why_stopped(&why, state);
                break;
            }
        }
        let new = self.group.activity.during(Doing::Writes, || self.session.end_save())?;
        self.prune(new);
        self.session.end_threads();
        Ok(())
    }

    /// Removes old checkpoints if there is a new one on disk, after so many steps.
    fn prune(&mut self, new: Option<usize>) {
        if let Some(step) = new.filter(|_| self.report.is_sound()) {
            self.session.prune(step);
        }
    }

    /// The settings of the next step, of so many samples over all ranks.
    fn settings(&self, samples: usize) -> Result<StepSettings, RunError> {
        let (plan, consumed) = (self.plan, self.progress.samples);
        let share = plan.batch.share_after(consumed, plan.parallel.data_rank(self.group.rank()));
        let counts = self.source.counts(Split::Train, consumed, samples)?;
        let length = plan.length_of(&*self.source, Split::Train, consumed, samples)?;
        Ok(StepSettings { length, ..step_settings(&plan.optimizer, self.progress.step, share, counts) })
    }

    /// Submits one step, and then waits for the step before. The host is never more than one step ahead of the device.
    fn train_step(&mut self) -> Result<(), RunError> {
        let Progress { step, samples: consumed } = self.progress;
        let started = Instant::now();
        let samples = self.plan.batch.samples_after(consumed);
        let settings = self.settings(samples)?;
        let (length, microbatches) = (settings.length, settings.microbatches);
        // The first batch may take long, so it counts as part of the start.
        let waits = if step > self.first_step { Doing::WaitsForBatch } else { Doing::Starts };
        let (mut batch, mut data_wait) = (None, Duration::ZERO);
        if let Some(batches) = &mut self.batches {
            let (next, waited) = self.group.activity.during(waits, || batches.next_batch())?;
            (batch, data_wait) = (Some(next), waited);
        }
        self.trace.before_step(self.device)?;
        let measures = self.plan.measures_fp8_at(step);
        let mode = if measures { Mode::Measure } else { Mode::Train };
        let kind = self.stage.kind(mode, length)?;
        let settled = self.stage.graphs().is_settled(kind, microbatches);
        if self.plan.verifies_at(step) && settled {
            let (plan, group, step) = (self.plan, self.group, (mode, settings, batch.as_ref()));
            self.verified.verify(plan, group, self.stage, step)?;
        }
        self.group.activity.set(if settled { Doing::Steps } else { Doing::Starts });
        // Copies to and from the host are under way twice at most: the first two steps allocate for them.
        let is_steady = settled && step > self.first_step + 1;
        self.device.set_sync_debug(if is_steady { sync_debug(self.plan) } else { SyncDebug::Off });
        self.stage.let_hooks_read(self.report.is_due(step + 1));
        let (metrics, counts) = match measures {
            true => self.stage.measured_step(settings, batch.as_ref())?,
            false => (self.stage.train_step(settings, batch.as_ref())?, None),
        };
        self.stage.let_hooks_read(false);
        self.device.set_sync_debug(SyncDebug::Off);
        self.trace.after_step(self.device)?;
        let host = started.elapsed();
        tracing::debug!(host_ms = host.as_secs_f64() * 1e3, "submitted");
        let progress = Progress { step: step + 1, samples: consumed + samples as u64 };
        let submitted = SubmittedStep { progress, samples, length, metrics, counts, started, host, data_wait };
        if let Some(before) = self.in_flight.replace(submitted) {
            let done = self.wait(before)?;
            self.report.report_step(&done, None);
        }
        if self.plan.graphs.enable && !settled && self.stage.graphs().is_settled(kind, microbatches) {
            self.say_graphs(length);
        }
        self.progress = progress;
        Ok(())
    }

    /// Tells of graphs after the step of the capture. Each length of samples has its own; the first line is about all.
    fn say_graphs(&mut self, length: Option<usize>) {
        let length = length.unwrap_or(self.plan.size.losses_per_sample);
        let is_first = self.graphs_told.is_empty();
        if !self.graphs_told.insert(length) {
            return;
        }
        let report = self.stage.graphs().report();
        self.report.say(&match is_first {
            true => format!("graphs: {report}"),
            false => {
                format!("graphs: those of samples of {length} too, {} in all", counted(report.graphs.len(), "graph"))
            }
        });
    }

    /// Evaluates at the configured interval and after the last step. Reports the step just submitted together with the
    /// validation loss. Returns whether that is the lowest so far.
    fn evaluate_if_due(&mut self) -> Result<bool, RunError> {
        self.validated.loss = None;
        let (done, steps) = (self.progress.step, self.plan.steps);
        let Some(evaluation) = self.plan.evaluation.filter(|plan| done % plan.interval == 0 || done == steps) else {
            return Ok(false);
        };
        let last = self.in_flight.take().map(|step| self.wait(step)).transpose()?;
        let activity = &self.group.activity;
        let validation = activity.during(Doing::Evaluates, || -> Result<Validation, RunError> {
            let most = (evaluation.batches * self.plan.batch.global) as u64;
            let Means { loss, of_pairs } =
                validation_means(self.plan, self.group.rank(), self.stage, &*self.source, most)?;
            let mut losses = BTreeMap::new();
            for set in self.sets {
                let result = of_set(self.plan, self.group, self.stage, set, Some(most))?;
                losses.extend(result.map(|result| (set.name.clone(), result.loss)));
            }
            Ok(Validation { loss, of_pairs, sets: losses })
        })?;
        // All ranks go by rank 0's loss.
        let loss =
            f64::from_bits(self.group.control.max(if self.group.rank() == 0 { validation.loss.to_bits() } else { 0 }));
        if let Some(last) = last {
            self.report.report_step(&last, Some(validation));
        }
        Ok(self.validated.add(done, loss))
    }

    /// Lets the model write at the configured interval and after the last step.
    fn write_samples_if_due(&mut self) -> Result<(), RunError> {
        let (done, interval) = (self.progress.step, self.plan.config.logging.sample_interval);
        if self.samples.is_none() || !(done.is_multiple_of(interval) || done == self.plan.steps) {
            return Ok(());
        }
        self.report_in_flight()?;
        self.device.synchronize()?;
        let Some(samples) = &mut *self.samples else { return Ok(()) };
        let activity = &self.group.activity;
        let texts = activity.during(Doing::Evaluates, || samples.write(activity))?;
        // The next update writes the weights that the model has read, on another stream.
        self.device.synchronize()?;
        self.report.report_samples(done, texts);
        Ok(())
    }

    /// Writes a checkpoint if one is due and the state may be saved. `best` says that it has the lowest validation loss so
    /// far. The state counts as saved once its checkpoint has begun.
    fn save_if_due(&mut self, stop: bool, best: bool) -> Result<LastState, RunError> {
        let step = self.progress.step;
        let last = stop || step == self.plan.steps;
        let Some(place) = self.session.due(step, last, best) else { return Ok(LastState::Unsaved) };
        self.report_in_flight()?;
        // A diverged state is never saved. At an interval, neither is the state after a skipped update.
        if self.report.has_diverged() || !(last || self.report.is_sound()) {
            if !last {
                self.report.say(&format!("no checkpoint after step {step}: its loss or gradients are not finite"));
            }
            return Ok(LastState::Unsaved);
        }
        self.group.activity.during(Doing::Writes, || {
            if self.group.rank() == 0 {
                // Lest a removed folder comes back as nobody's. If this fails, so do the metrics.
                let _ = run_folder::mark(Path::new(&self.plan.config.logging.dir), self.session.run());
            }
            // A checkpoint is never ahead of its metrics: it has those that are not on disk.
            let metrics = self.report.sync();
            let occasion = if last { Occasion::End } else { Occasion::Interval };
            let new = self.session.save(self.stage, place, (self.progress, self.validated), occasion, &metrics)?;
            self.prune(new);
            Ok(LastState::Saved)
        })
    }

    /// Waits for the submitted step, if any, and reports the step.
    fn report_in_flight(&mut self) -> Result<(), RunError> {
        if let Some(step) = self.in_flight.take() {
            let done = self.wait(step)?;
            self.report.report_step(&done, None);
        }
        Ok(())
    }

    fn wait(&mut self, step: SubmittedStep) -> Result<FinishedStep, RunError> {
        let is_first = self.last_end.is_none();
        let done = self.group.activity.during(Doing::WaitsForDevice, || step.wait(&mut self.last_end));
        if is_first {
            tracing::info!("start: the first step is done");
        }
        done
    }
}

/// The reaction to calls that a steady step must not make.
fn sync_debug(plan: &RunPlan) -> SyncDebug {
    match plan.config.train.sync_debug {
        SyncDebugChoice::Off => SyncDebug::Off,
        SyncDebugChoice::Warn => SyncDebug::Warn,
        SyncDebugChoice::Error => SyncDebug::Error,
    }
}

/// The first rank of each stage looks at the stage's 8-bit tensors.
fn fp8_watch(plan: &RunPlan, group: &ProcessGroup) -> Option<Fp8Watch> {
    let is_first = group.ranks.place(group.ranks.of_stage()).is_first();
    let delayed = plan.config.precision.fp8_recipe == Fp8Recipe::Delayed;
    (is_first && plan.measures_fp8()).then(|| Fp8Watch::new(delayed))
}

/// Claims the run's folder, writes every option to `config.toml`, and opens the files that get a line for each step.
fn open_log(plan: &RunPlan, session: &Session<'_>) -> Result<RunLog, RunError> {
    let folder = Path::new(&plan.config.logging.dir);
    let file = |what: &str| file_error(format!("{what} in {}", folder.display()));
    let claimed = run_folder::claim(folder, session.run(), session.continues_at());
    if let Some(aside) = claimed.map_err(file("the run's folder"))? {
        say(&format!("metrics of another run were moved to {}", aside.display()));
    }
    let resolved = toml::to_string(&plan.config).unwrap_or_default();
    write_file(&folder.join(CONFIG), resolved).map_err(file(CONFIG))?;
    let carried = session.carried_metrics()?;
    let client = plan.config.logging.wandb.then(|| Client::start(folder, session.run(), &plan.config)).flatten();
    RunLog::open(&plan.config, session.progress().step, &carried, client).map_err(file("metrics.jsonl"))
}

/// Starts a thread that reads the batches of all remaining steps.
fn prefetch(
    plan: &RunPlan,
    rank: usize,
    source: Arc<dyn Source>,
    progress: Progress,
    stage: &Stage,
) -> Result<Prefetch, RunError> {
    let (batch, data_rank) = (plan.batch.clone(), plan.parallel.data_rank(rank));
    let mut consumed = progress.samples;
    let steps = progress.step..plan.steps;
    Ok(Prefetch::start(source, steps, stage.staging(BATCHES_IN_MEMORY)?, move |_| {
        let share = batch.share_after(consumed, data_rank);
        consumed += batch.samples_after(consumed) as u64;
        (share.first_sample, share.samples)
    })?)
}
