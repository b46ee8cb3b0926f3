//! A run: the loop over steps, evaluation, and what ends it.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use device::{Communicator, Device};
use graph_manager::Mode;
use parallel::PipelineGroups;

use crate::checkpoint::{Progress, SaveError, Session};
use crate::cli::TrainRequest;
use crate::config::UserError;
use crate::data::{self, DataError, IN_MEMORY, Identities, MarkovSource, Missing, Prefetch, Regression, Source, Split};
use crate::hf::LoadError;
use crate::logs::PRINTED;
use crate::plan::{ModelPlan, RunPlan};
use crate::plan_box::plan_box;
use crate::reporter::{Reporter, StepUnderWay, peak_flops};
use crate::run_folder;
use crate::run_log::RunLog;
use crate::set_up::{load_start, stage};
use crate::signals::Stop;
use crate::step::{Stage, StepSettings};
use crate::terminal::say;
use crate::trace::StepTrace;
use crate::watch::activity::{Activity, Doing};

/// What ends a run early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user's input is wrong: exit code 2.
    #[error(transparent)]
    User(#[from] UserError),
    /// A step failed: exit code 3.
    #[error("{0}")]
    Step(#[from] graph_manager::Error),
    /// The device failed: exit code 3.
    #[error("{0}")]
    Device(#[from] device::Error),
    /// The last checkpoint could not be written: exit code 3.
    #[error("{0}")]
    Checkpoint(#[from] SaveError),
    /// Data cannot be read any more, or written: exit code 3.
    #[error("{0}")]
    Data(#[from] DataError),
    /// The trainer has a bug: exit code 3.
    #[error("the trainer panicked: {0}. Fix: report it")]
    Panic(String),
    /// A file could not be written: exit code 3.
    #[error("{what}: {error}. Fix: check the folder's permissions and space, or set another")]
    File {
        /// What was being written.
        what: String,
        /// What the operating system said.
        error: std::io::Error,
    },
}

impl From<LoadError> for RunError {
    fn from(error: LoadError) -> RunError {
        match error {
            LoadError::User(error) => RunError::User(error),
            LoadError::Device(error) => RunError::Device(error),
        }
    }
}

impl RunError {
    /// The process's exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            RunError::User(_) => 2,
            _ => 3,
        }
    }

    /// Whether it may have come of another rank's fault: a transfer that failed, a checkpoint that others could not write.
    pub fn follows(&self) -> bool {
        let device = match self {
            RunError::Checkpoint(error) => return matches!(error, SaveError::Peer { .. }),
            RunError::Device(error) | RunError::Step(graph_manager::Error::Device { source: error, .. }) => error,
            _ => return false,
        };
        matches!(device, device::Error::Communication { .. })
    }
}

/// This process's place among the ranks, and how it talks to them.
pub struct Ranks {
    /// Number in the world.
    pub rank: usize,
    /// The ranks with other parts of the batch; none where there are no others.
    pub group: Option<Rc<dyn Communicator>>,
    /// The ranks that share layers; none where there are no others.
    pub tensor: Option<Rc<dyn Communicator>>,
    /// The stages with other layers; none where there are no others.
    pub pipeline: Option<PipelineGroups>,
    /// Ranks on this machine, this one among them.
    pub local: usize,
    /// Threads of the host device.
    pub threads: usize,
    /// Waits for all ranks.
    pub barrier: Rc<dyn Fn()>,
    /// The largest value of all ranks.
    pub max: Rc<dyn Fn(u64) -> u64>,
    /// The sum over all ranks.
    pub sum: Rc<dyn Fn(u64) -> u64>,
    /// The text of one rank, on all.
    pub text_of: Rc<dyn Fn(usize, String) -> String>,
    /// Whether this process was asked to end. The run then ends on all ranks after the step under way.
    pub stop: Stop,
    /// What this rank does, for who watches.
    pub activity: Activity,
}

impl Ranks {
    /// One process that is the whole run.
    pub fn alone(threads: usize) -> Ranks {
        Ranks {
            rank: 0,
            group: None,
            tensor: None,
            pipeline: None,
            local: 1,
            threads,
            barrier: Rc::new(|| {}),
            max: Rc::new(|value| value),
            sum: Rc::new(|value| value),
            text_of: Rc::new(|_, text| text),
            stop: Stop::default(),
            activity: Activity::default(),
        }
    }
}

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

/// Opens the data of a plan.
///
/// # Errors
/// What is wrong with the data, or a vocabulary that is too small for them.
pub fn source(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    let data = &plan.config.data;
    data::refuse_unused(data, matches!(plan.model, ModelPlan::Mlp(_)))?;
    let shape = match &plan.model {
        ModelPlan::Mlp(shape) => {
            let (first, last) = (shape.sizes[0], shape.sizes[shape.sizes.len() - 1]);
            return Ok(Arc::new(Regression::new(data.seed, first, last)));
        }
        ModelPlan::Gpt(shape) => shape,
    };
    let Some(path) = &data.path else {
        if shape.vocab < 256 {
            return Err(UserError::new(
                format!("model.vocab = {}", shape.vocab),
                "the embedded source's tokens are bytes, 0 to 255",
                "set model.vocab = 256",
            ));
        }
        return Ok(Arc::new(MarkovSource::new(data.seed, shape.seq)));
    };
    let source = data::open(path, data, shape.seq, shape.vocab)?;
    if let (false, Some(interval)) = (source.validates(), plan.eval_interval()) {
        return Err(UserError::new(
            format!("data.split = {} with train.eval_interval = {interval}", data.split),
            "evaluation needs data that are not trained on",
            "set data.split = 0.9, data.validation_path, or train.eval_interval = 0",
        ));
    }
    Ok(Arc::new(source))
}

/// As [`source()`], for a plan or a benchmark, which read none: files that are not there do not keep it from being made.
///
/// # Errors
/// As [`source()`], but for files that are missing.
pub fn source_to_plan(plan: &RunPlan) -> Result<Arc<dyn Source>, UserError> {
    let data = &plan.config.data;
    data::refuse_unused(data, matches!(plan.model, ModelPlan::Mlp(_)))?;
    match Missing::of(data) {
        Some(missing) => Ok(Arc::new(missing)),
        None => source(plan),
    }
}

/// Trains as planned on `source`, which [`source()`] opened.
///
/// # Errors
/// See [`RunError`].
pub fn train(
    plan: &RunPlan,
    request: &TrainRequest,
    ranks: &Ranks,
    device: &Device,
    source: Arc<dyn Source>,
) -> Result<Option<Outcome>, RunError> {
    let session = (!request.dry_run).then(|| Session::open(plan, ranks, same_data(ranks, &*source)?)).transpose()?;
    if let Some(session) = &session {
        session.compute_alike(device);
    }
    // Of what a timeline needs nothing may be missing once work has begun; no graph is made before.
    let begins_at = session.as_ref().map(|session| session.progress().step);
    let trace = begins_at.map(|step| StepTrace::prepare(plan, ranks, device, step)).transpose()?;
    // On a fault nothing is torn down: freeing what the device still uses would wait for it, and for the ranks that it waits
    // for, before anybody is told.
    let mut stage = ManuallyDrop::new(stage(plan, device, ranks)?);
    let outcome = train_stage(plan, request, ranks, device, source, (session, trace), &mut stage)?;
    drop(ManuallyDrop::into_inner(stage));
    Ok(outcome)
}

/// Brings a stage to where the run starts, and runs it from there.
fn train_stage(
    plan: &RunPlan,
    request: &TrainRequest,
    ranks: &Ranks,
    device: &Device,
    source: Arc<dyn Source>,
    (session, trace): (Option<Session<'_>>, Option<StepTrace>),
    stage: &mut Stage,
) -> Result<Option<Outcome>, RunError> {
    let main = ranks.rank == 0;
    if session.as_ref().is_none_or(Session::begins_anew) {
        load_start(plan, device, stage)?;
    }
    if main {
        let text = plan_box(plan, stage, &*source, device, ranks);
        say(&text);
        tracing::info!(target: PRINTED, "{text}");
    }
    let (Some(session), Some(mut trace)) = (session, trace) else { return Ok(None) };
    let start = session.progress();
    let steps = plan.config.train.steps;
    if start.step >= steps {
        if main {
            say(&format!("done before: {} of {steps} steps. To go on, set a larger train.steps", start.step));
        }
        return Ok(None);
    }
    session.restore(stage)?;
    let log = main.then(|| open_log(plan, &session)).transpose()?;
    let mut report = Reporter::new(plan, log, device.allocated_bytes(), peak_flops(plan, device), start.step);
    tracing::info!(rank = ranks.rank, threads = ranks.threads, "training begins");
    let mut batches = prefetch(plan, ranks.rank, source.clone(), start, stage)?;
    ranks.stop.heed();
    let mut under_way: Option<StepUnderWay> = None;
    let mut ended = None;
    let wait = |step: StepUnderWay, ended: &mut Option<Instant>| {
        ranks.activity.during(Doing::WaitsForDevice, || step.wait(ended))
    };
    let mut progress = start;
    while progress.step < steps {
        let Progress { step, samples: consumed } = progress;
        let _span = tracing::info_span!("step", step).entered();
        let started = Instant::now();
        let samples = plan.batch_size.after(consumed);
        let settings = training_settings(plan, ranks.rank, step, consumed);
        let waits = if step > start.step { Doing::WaitsForBatch } else { Doing::Starts };
        let (batch, data_wait) = ranks.activity.during(waits, || batches.next_batch())?;
        trace.before_step(device)?;
        let settled = stage.graphs().is_settled(Mode::Train, settings.microbatches);
        ranks.activity.set(if settled { Doing::Steps } else { Doing::Starts });
        let metrics = stage.train_step(settings, Some(&batch))?;
        trace.after_step(device)?;
        tracing::debug!(host_ms = started.elapsed().as_secs_f64() * 1e3, "submitted");
        let submitted = StepUnderWay { step, samples, metrics, started, host: started.elapsed(), data_wait };
        // The host is never more than a step ahead, and never waits for the step it has just submitted.
        if let Some(before) = under_way.replace(submitted) {
            report.tell(&wait(before, &mut ended)?, None);
        }
        if plan.graphs.enable && step == start.step + plan.graphs.warmup_steps {
            report.say(&format!("graphs: {}", stage.graphs().report()));
        }
        if plan.eval_interval().is_some_and(|interval| (step + 1) % interval == 0 || step + 1 == steps) {
            let done = under_way.take().map(|step| wait(step, &mut ended)).transpose()?;
            let loss = ranks.activity.during(Doing::Evaluates, || evaluate(plan, stage, &*source, ranks.rank))?;
            if let Some(done) = done {
                report.tell(&done, Some(loss));
            }
        }
        progress = Progress { step: step + 1, samples: consumed + samples as u64 };
        // All ranks end together, whichever was asked to or has to.
        let stop = (ranks.max)((ranks.stop.is_asked() || report.is_stuck()).into()) > 0;
        let last = stop || progress.step == steps;
        let due = session.due(progress.step, last);
        if let Some(done) = under_way.take_if(|_| due) {
            report.tell(&wait(done, &mut ended)?, None);
        }
        // A step without an update made nothing that is worth a checkpoint at an interval.
        let saves = due && !report.has_diverged() && (last || report.is_sound());
        if due && !saves && !last {
            report.say(&format!("no checkpoint after step {}: its loss or gradients are not finite", progress.step));
        }
        if saves {
            ranks.activity.during(Doing::Writes, || {
                report.sync(); // a checkpoint is not ahead of the metrics
                if session.save(stage, progress, last)? && report.is_sound() {
                    session.prune(progress.step);
                }
                Ok::<(), RunError>(())
            })?;
        }
        if stop && progress.step < steps {
            let why = if report.is_stuck() { "" } else { "asked to end: " };
            let kept = match (saves, report.has_diverged()) {
                (true, _) => "saved",
                (_, true) => "not saved",
                _ => "not saved, for checkpoint.dir is unset",
            };
            report.say(&format!("{why}stops after step {} of {steps}, {kept}", progress.step));
            break;
        }
    }
    ranks.activity.set(Doing::Ends);
    if let Some(last) = under_way.take() {
        report.tell(&wait(last, &mut ended)?, None);
    }
    ranks.activity.during(Doing::Writes, || {
        report.close()?;
        match &request.graph_report {
            Some(path) if main => {
                write_report(stage, path).map_err(file_error(format!("the graph report, {}", path.display())))
            }
            _ => Ok(()),
        }
    })?;
    if let Some(told) = trace.finish(device)? {
        report.say(&told);
    }
    let finite = (ranks.max)((!report.last_loss.is_finite() || report.has_diverged()).into()) == 0;
    let outcome =
        Outcome { loss: report.last_loss, finite, validation_loss: report.last_validation, floor: source.floor() };
    report.finish(&outcome);
    Ok(Some(outcome))
}

/// Takes the run's folder and opens its metrics, where the session goes on.
fn open_log(plan: &RunPlan, session: &Session<'_>) -> Result<RunLog, RunError> {
    let folder = Path::new(&plan.config.logging.dir);
    let file = |what: &str| file_error(format!("{what} in {}", folder.display()));
    let taken = run_folder::take(folder, session.run(), session.continues_at());
    if let Some(aside) = taken.map_err(file("the run's folder"))? {
        say(&format!("metrics of another run are now in {}", aside.display()));
    }
    let resolved = toml::to_string(&plan.config).unwrap_or_default();
    std::fs::write(folder.join("config.toml"), resolved).map_err(file("config.toml"))?;
    RunLog::open(&plan.config.logging, session.progress().step).map_err(file("metrics.jsonl"))
}

/// Begins to make the batches of all steps to come.
fn prefetch(
    plan: &RunPlan,
    rank: usize,
    source: Arc<dyn Source>,
    start: Progress,
    stage: &Stage,
) -> Result<Prefetch, RunError> {
    let plan = plan.clone();
    let mut consumed = start.samples;
    let steps = start.step..plan.config.train.steps;
    let batches = Prefetch::start(source, steps, stage.staging(IN_MEMORY)?, move |step| {
        let settings = training_settings(&plan, rank, step, consumed);
        consumed += plan.batch_size.after(consumed) as u64;
        (settings.first_sample, settings.microbatches * plan.config.train.micro_batch_size)
    })?;
    Ok(batches)
}

/// What the data are; fails on ranks whose data are not those of rank 0.
fn same_data(ranks: &Ranks, source: &dyn Source) -> Result<Identities, RunError> {
    let here = source.identities()?;
    let first = (ranks.text_of)(0, serde_json::to_string(&here).unwrap_or_default());
    match serde_json::from_str(&first).map(|first| data::changed(&first, &here)) {
        Ok(changed) if !changed.is_empty() => Err(UserError::new(
            format!("rank {} has other data: {}", ranks.rank, changed.join(", ").replace("(was ", "(rank 0: ")),
            "all ranks see the same data",
            "put them on a file system all nodes share, or the same files on each node",
        )
        .into()),
        _ => Ok(here),
    }
}

pub(crate) fn file_error(what: String) -> impl FnOnce(std::io::Error) -> RunError {
    move |error| RunError::File { what, error }
}

/// What the host decides for a training step that comes after so many samples.
fn training_settings(plan: &RunPlan, rank: usize, step: usize, consumed: u64) -> StepSettings {
    settings(plan, rank, step, consumed, plan.batch_size.microbatches_after(consumed))
}

/// What the host decides for a step of so many microbatches a rank that begins with sample `first` of all ranks.
pub(crate) fn settings(plan: &RunPlan, rank: usize, step: usize, first: u64, microbatches: usize) -> StepSettings {
    let samples = microbatches * plan.config.train.micro_batch_size;
    StepSettings {
        step: step as u32,
        microbatches,
        first_sample: first + (plan.grid.place(rank).data * samples) as u64,
        learning_rate: plan.schedule.at(step) as f32,
        clip: plan.config.optimizer.clip as f32,
    }
}

/// Mean loss over the first validation batches, the same ones each time.
fn evaluate(plan: &RunPlan, stage: &mut Stage, source: &dyn Source, rank: usize) -> Result<f64, RunError> {
    let batches = plan.config.train.eval_steps;
    let mut total = 0.0;
    for index in 0..batches {
        let first = (index * plan.config.train.global_batch_size) as u64;
        let settings = settings(plan, rank, index, first, plan.microbatches);
        let samples = plan.microbatches * plan.config.train.micro_batch_size;
        let batch = source.batch(Split::Validation, settings.first_sample, samples)?;
        total += stage.evaluate(settings, &batch)?.wait()?.loss;
    }
    Ok(total / batches as f64)
}

/// Writes all graphs as JSON to `path`, and as Graphviz beside it.
fn write_report(stage: &mut Stage, path: &Path) -> std::io::Result<()> {
    let report = stage.graphs().report();
    std::fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    std::fs::write(path.with_extension("dot"), report.dot())
}
