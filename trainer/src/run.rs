//! A run: set-up, the loop over steps, evaluation, and what is written.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::{Communicator, DType, Device};
use graph_manager::{GraphOptions, Mode};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parallel::{PipelineGroups, PipelineStage, Place};

use crate::accelerator::peak_tflops;
use crate::checkpoint::{Progress, SaveError, Session};
use crate::cli::TrainRequest;
use crate::config::UserError;
use crate::data::{self, DataError, IN_MEMORY, MarkovSource, Prefetch, Regression, Source, Split};
use crate::hf::{LoadError, Pretrained};
use crate::host_memory::fits_host;
use crate::logs::PRINTED;
use crate::metrics::{StepMetrics, boxed, bytes, count};
use crate::model::TensorParallel;
use crate::plan::{ModelPlan, RunPlan};
use crate::run_folder;
use crate::run_log::RunLog;
use crate::step::{PendingMetrics, Stage, StageOptions, StepResult, StepSettings};
use crate::terminal::{say, warn};
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
    /// The text of one rank, on all.
    pub text_of: Rc<dyn Fn(usize, String) -> String>,
    /// Raised when this process was asked to end. The run then ends on all ranks after the step under way.
    pub stop: Arc<AtomicBool>,
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
            text_of: Rc::new(|_, text| text),
            stop: Arc::default(),
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
    used(plan)?;
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
    if !source.validates() && plan.config.train.eval_interval > 0 {
        return Err(UserError::new(
            format!("data.split = {} with train.eval_interval = {}", data.split, plan.config.train.eval_interval),
            "evaluation needs data that are not trained on",
            "set data.split = 0.9, data.validation_path, or train.eval_interval = 0",
        ));
    }
    Ok(Arc::new(source))
}

/// Fails on options of data that would say nothing about what is trained on.
fn used(plan: &RunPlan) -> Result<(), UserError> {
    let data = &plan.config.data;
    let mlp = matches!(plan.model, ModelPlan::Mlp(_));
    let about_files = [
        ("data.path", mlp && data.path.is_some()),
        ("data.validation_path", data.validation_path.is_some()),
        ("data.tokenizer", data.tokenizer != "byte"),
        ("data.end_of_text", data.end_of_text.is_some()),
        ("data.raw_tokens", data.raw_tokens != "none"),
    ];
    let (rule, fix) = match (mlp, &data.path) {
        (true, _) => ("an MLP trains on rows that the trainer makes", "leave it out, or set model.kind = \"gpt\""),
        (_, None) => ("it says how the files of data.path are taken", "set data.path (--data-path), or leave it out"),
        _ => return Ok(()),
    };
    match about_files.iter().find(|(_, given)| *given) {
        Some((key, _)) if mlp => Err(UserError::new(format!("{key} with model.kind = \"mlp\""), rule, fix)),
        Some((key, _)) => Err(UserError::new(format!("{key} without data.path"), rule, fix)),
        None => Ok(()),
    }
}

/// Makes this rank's stage and records its steps, so that its memory is known.
///
/// # Errors
/// Out of memory, or settings that do not go together.
pub fn stage(plan: &RunPlan, device: &Device, ranks: &Ranks, poison: bool) -> Result<Stage, RunError> {
    // A dry host device plans for another machine.
    if device.gpu().is_some() || !device.is_dry() {
        rehearse(plan, device, ranks, poison)?;
    }
    let mut stage = recorded_stage(plan, device, ranks, poison)?;
    if device.gpu().is_some() && !device.is_dry() && plan.grid.pipeline > 1 {
        stage.rehearse(&plan.batch_size.microbatches(), plan.config.train.eval_interval > 0)?;
        device.synchronize()?;
    }
    if let (Some(folder), ModelPlan::Gpt(shape)) = (&plan.config.model.init_from, &plan.model)
        && !device.is_dry()
    {
        Pretrained::open(folder.as_ref())?.load(shape, stage.params(), device)?;
    }
    Ok(stage)
}

/// Goes through set-up without taking memory. The first rank of each stage in turn times how those matrix products that no
/// stage before has are best done on this GPU, and all ranks do as it found; what does not fit its memory, or the host's,
/// is refused before anything is allocated.
fn rehearse(plan: &RunPlan, device: &Device, ranks: &Ranks, poison: bool) -> Result<(), RunError> {
    let mut needed = None;
    for pipeline in 0..plan.grid.pipeline {
        let first = plan.grid.rank(Place { pipeline, tensor: 0, data: 0 });
        if ranks.rank == first {
            needed = Some(bytes_needed(plan, device, ranks, poison));
            (ranks.text_of)(first, device.export_choices().unwrap_or_default());
        } else {
            device.import_choices(&(ranks.text_of)(first, String::new()))?;
        }
    }
    let needed = needed.unwrap_or_else(|| bytes_needed(plan, device, ranks, poison))?;
    if device.gpu().is_none() {
        return Ok(fits_host(needed, device, ranks)?);
    }
    match device.gpu_memory()? {
        Some((free, total)) if needed > free => Err(UserError::new(
            format!(
                "a rank needs {} of GPU memory, {} of {} are free",
                bytes(needed),
                bytes(free),
                bytes(total)
            ),
            "weights, optimizer state and activations fit a rank's GPU",
            "set a smaller train.micro_batch_size, recompute.granularity, or a smaller model; `--dry-run` shows what takes how much",
        )
        .into()),
        _ => Ok(()),
    }
}

/// What a stage takes of the device's memory, found without taking it.
fn bytes_needed(plan: &RunPlan, device: &Device, ranks: &Ranks, poison: bool) -> Result<usize, RunError> {
    let dry = device.is_dry();
    device.set_dry(true);
    let needed = recorded_stage(plan, device, ranks, poison).map(|stage| {
        let needed = device.allocated_bytes();
        drop(stage);
        needed
    });
    device.set_dry(dry);
    needed
}

fn recorded_stage(plan: &RunPlan, device: &Device, ranks: &Ranks, poison: bool) -> Result<Stage, RunError> {
    let sequence = plan.config.parallel.sequence_parallel;
    let tensor = TensorParallel { group: ranks.tensor.clone(), sequence };
    let options = StageOptions {
        compute: match &plan.model {
            ModelPlan::Gpt(shape) => shape.dtype,
            ModelPlan::Mlp(shape) => shape.dtype,
        },
        seed: plan.config.train.seed,
        microbatches: plan.microbatches,
        micro_batch_size: plan.config.train.micro_batch_size,
        losses_per_sample: plan.losses_per_sample,
        optimizer: plan.optimizer,
        weight_decay: plan.config.optimizer.weight_decay as f32,
        bucket_bytes: plan.config.parallel.bucket_mib << 20,
        distributed_optimizer: plan.config.parallel.distributed_optimizer,
        grad_reduce: if plan.config.parallel.grad_reduce == "bf16" { DType::Bf16 } else { DType::F32 },
        pipeline: plan.stage(ranks.rank),
        graphs: GraphOptions { poison, ..plan.graphs.clone() },
    };
    let architecture = plan.model.part(tensor, plan.layers(ranks.rank));
    let mut stage = Stage::new(device, &architecture, options, ranks.group.clone(), ranks.pipeline.clone())?;
    for (at, microbatches) in plan.batch_size.microbatches().into_iter().enumerate() {
        stage.record(microbatches, at == 0 && plan.config.train.eval_interval > 0)?;
    }
    stage.graphs().allocate()?;
    let barrier = ranks.barrier.clone();
    stage.graphs().before_capture(move || {
        barrier();
        Ok(())
    });
    Ok(stage)
}

/// The plan as a box: what will be trained, on what, in how much memory.
pub fn plan_box(plan: &RunPlan, stage: &mut Stage, source: &dyn Source, device: &Device, ranks: &Ranks) -> String {
    let state: usize = stage.optimizer().state.iter().map(|(_, tensor)| tensor.bytes()).sum();
    let activations = stage.graphs().memory();
    let planned: usize = activations.iter().map(|area| area.bytes).sum();
    let areas: Vec<String> = activations.iter().map(|area| format!("{} {}", area.area, bytes(area.bytes))).collect();
    let graphs = if plan.graphs.enable {
        let modes = [(Mode::Train, "training"), (Mode::Evaluate, "evaluation")];
        let counts = modes.map(|(mode, name)| format!("{} for {name}", stage.graphs().expected_graphs(mode)));
        format!("{}, {} pool: {}", plan.config.cuda_graph.scope, plan.config.cuda_graph.mempool, counts.join(", "))
    } else {
        "off".into()
    };
    let grads = bytes(stage.params().grads.bytes());
    let weights = match (stage.params().weight_bytes(), stage.params().shard().ranks) {
        ((weights, None), 1) => format!("{} master, {grads} main_grad", bytes(weights)),
        ((weights, None), ranks) => format!("{}, 1/{ranks} of them master, {grads} main_grad", bytes(weights)),
        ((weights, Some(master)), _) => {
            format!("{} master, {grads} main_grad, {} {}", bytes(master), bytes(weights), plan.config.precision.compute)
        }
    };
    let divided = match stage.params().shard().ranks {
        1 => String::new(),
        ranks => format!(": the part of one of {ranks} ranks"),
    };
    let shared = match (plan.grid.tensor, plan.config.parallel.sequence_parallel) {
        (1, _) => String::new(),
        (tensor, false) => format!("; {tensor} ranks share each layer"),
        (tensor, true) => format!("; {tensor} ranks share each layer and its tokens"),
    };
    let ramp = plan.batch_size.ramp_in_words().map_or(String::new(), |ramp| format!("; {ramp}"));
    let mut rows = vec![
        ("model", format!("{}, {} parameters", plan.config.model.preset, count(plan.parameters as f64))),
        ("data", source.describe()),
        (
            "batch",
            format!(
                "{} samples = {} ranks x {} microbatches x {}, {} tokens a step{shared}{ramp}",
                plan.config.train.global_batch_size,
                plan.grid.data,
                plan.microbatches,
                plan.config.train.micro_batch_size,
                count(plan.tokens_per_step as f64)
            ),
        ),
        (
            "steps",
            format!("{}, {} tokens", plan.config.train.steps, {
                count(plan.batch_size.samples_of(plan.config.train.steps) as f64 * plan.losses_per_sample as f64)
            }),
        ),
        ("device", format!("{}, {}", place(device, ranks), plan.config.precision.compute)),
        ("weights", weights),
        ("optimizer", format!("{}, {}{divided}", plan.config.optimizer.kind, bytes(state))),
        ("activations", format!("{}: {}", bytes(planned), areas.join(", "))),
        ("memory", memory(device)),
        ("graphs", graphs),
    ];
    if plan.grid.pipeline > 1 {
        let layers = plan.layers(ranks.rank).in_words();
        rows.splice(3..3, [("pipeline", pipeline_row(plan, ranks.rank)), ("layers", layers)]);
    }
    if let Some(floor) = source.floor() {
        rows.push(("loss floor", format!("{floor:.4} nats, the data's own entropy")));
    }
    boxed("plan of a rank", &rows)
}

/// The pipeline in words, with the time that a stage waits for others while the pipeline fills and drains: `stages - 1` of
/// `chunks * microbatches` parts (Narayanan et al., 2021).
fn pipeline_row(plan: &RunPlan, rank: usize) -> String {
    let PipelineStage { stages, stage, chunks, .. } = plan.stage(rank);
    let idle = (stages - 1) as f64 / (chunks * plan.microbatches) as f64;
    format!("stage {} of {stages}, idle for {:.1} % of the time of its work", stage + 1, idle * 100.0)
}

/// What a rank needs of its device's memory, and on a GPU what libraries took of it already.
fn memory(device: &Device) -> String {
    let needed = device.allocated_bytes();
    let total = bytes(needed);
    match device.gpu_memory() {
        Ok(Some((free, all))) if device.is_dry() => {
            let before = all - free;
            format!(
                "{total}, with {} of libraries and others {} of {}",
                bytes(before),
                bytes(before + needed),
                bytes(all)
            )
        }
        Ok(Some((_, all))) => format!("{total} of {}", bytes(all)),
        _ => total,
    }
}

/// The device in words.
fn place(device: &Device, ranks: &Ranks) -> String {
    match device.gpu() {
        Some(gpu) => format!(
            "{}, compute capability {}.{}, CUDA {}.{}",
            gpu.name,
            gpu.capability.0,
            gpu.capability.1,
            gpu.driver_version / 1000,
            gpu.driver_version % 1000 / 10
        ),
        None => format!("host, {} threads a rank", ranks.threads),
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
    let main = ranks.rank == 0;
    let session = (!request.dry_run).then(|| Session::open(plan, ranks)).transpose()?;
    if let Some(session) = &session {
        session.compute_alike(device);
    }
    let mut stage = stage(plan, device, ranks, request.check_graphs)?;
    if main {
        let text = plan_box(plan, &mut stage, &*source, device, ranks);
        say(&text);
        tracing::info!(target: PRINTED, "{text}");
    }
    let Some(session) = session else { return Ok(None) };
    let start = session.progress();
    let steps = plan.config.train.steps;
    if start.step >= steps {
        if main {
            say(&format!("done before: {} of {steps} steps. To go on, set a larger train.steps", start.step));
        }
        return Ok(None);
    }
    session.restore(device, &stage)?;
    let mut trace = StepTrace::prepare(plan, ranks.rank, &place(device, ranks), device)?;
    if let (true, Some(path)) = (main, &request.graph_report) {
        writable("--graph-report", path)?;
    }
    let folder = Path::new(&plan.config.logging.dir);
    let file = |what: &str| file_error(format!("{} in {}", what, folder.display()));
    let mut log = None;
    if main {
        if let Some(aside) = run_folder::take(folder, session.run(), start.step).map_err(file("the run's folder"))? {
            say(&format!("metrics of another run are now in {}", aside.display()));
        }
        let resolved = toml::to_string(&plan.config).unwrap_or_default();
        std::fs::write(folder.join("config.toml"), resolved).map_err(file("config.toml"))?;
        log = Some(RunLog::open(&plan.config.logging, start.step).map_err(file("metrics.jsonl"))?);
    }
    let mut report = Reporter::new(plan, main, device.allocated_bytes(), peak_flops(plan, device), start.step);
    tracing::info!(rank = ranks.rank, threads = ranks.threads, "training begins");
    let interval = plan.config.train.eval_interval;
    let mut batches = {
        let (plan, rank) = (plan.clone(), ranks.rank);
        let mut consumed = start.samples;
        Prefetch::start(source.clone(), start.step..steps, stage.staging(IN_MEMORY)?, move |step| {
            let settings = training_settings(&plan, rank, step, consumed);
            consumed += plan.batch_size.after(consumed) as u64;
            (settings.first_sample, settings.microbatches * plan.config.train.micro_batch_size)
        })?
    };
    let mut under_way: Option<StepUnderWay> = None;
    let mut ended = None;
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
        let warm = !plan.graphs.enable || step > start.step + plan.graphs.warmup_steps;
        ranks.activity.set(if warm && step > start.step { Doing::Steps } else { Doing::Starts });
        let metrics = stage.train_step(settings, Some(&batch))?;
        trace.after_step(device)?;
        tracing::debug!(host_ms = started.elapsed().as_secs_f64() * 1e3, "submitted");
        let submitted = StepUnderWay { step, samples, metrics, started, host: started.elapsed(), data_wait };
        // The host is never more than a step ahead, and never waits for the step it has just submitted.
        if let Some(before) = under_way.replace(submitted) {
            let before = ranks.activity.during(Doing::WaitsForDevice, || before.wait(&mut ended))?;
            report.tell(&before, None, &mut log)?;
        }
        if plan.graphs.enable && step == start.step + plan.graphs.warmup_steps {
            report.say(&format!("graphs: {}", stage.graphs().report()));
        }
        if interval > 0 && ((step + 1) % interval == 0 || step + 1 == steps) {
            let done = under_way.take().map(|step| step.wait(&mut ended)).transpose()?;
            let loss = ranks.activity.during(Doing::Evaluates, || evaluate(plan, &mut stage, &*source, ranks.rank))?;
            if let Some(done) = done {
                report.tell(&done, Some(loss), &mut log)?;
            }
        }
        progress = Progress { step: step + 1, samples: consumed + samples as u64 };
        // All ranks end together, whichever was asked to.
        let stop = (ranks.max)(ranks.stop.load(Ordering::Relaxed).into()) > 0;
        let last = stop || progress.step == steps;
        if session.due(progress.step, last) {
            if let Some(done) = under_way.take() {
                report.tell(&done.wait(&mut ended)?, None, &mut log)?;
            }
            // A checkpoint is never ahead of the metrics.
            log.as_mut().map_or(Ok(()), RunLog::sync).map_err(file("metrics.jsonl"))?;
            ranks.activity.during(Doing::Saves, || session.save(device, &stage, progress, last))?;
        }
        if stop && progress.step < steps {
            let kept =
                if session.due(progress.step, last) { "saved" } else { "not saved, for checkpoint.dir is unset" };
            report.say(&format!("asked to end: stops after step {} of {steps}, {kept}", progress.step));
            break;
        }
    }
    ranks.activity.set(Doing::Ends);
    if let Some(last) = under_way.take() {
        let last = last.wait(&mut ended)?;
        report.tell(&last, None, &mut log)?;
    }
    log.as_mut().map_or(Ok(()), RunLog::finish).map_err(file("wandb-summary.json"))?;
    if let (true, Some(path)) = (main, &request.graph_report) {
        write_report(&mut stage, path).map_err(file_error(format!("the graph report, {}", path.display())))?;
    }
    if let Some(told) = trace.finish(device)? {
        report.say(&told);
    }
    let finite = (ranks.max)((!report.last_loss.is_finite()).into()) == 0;
    let outcome =
        Outcome { loss: report.last_loss, finite, validation_loss: report.last_validation, floor: source.floor() };
    report.finish(&outcome);
    Ok(Some(outcome))
}

fn file_error(what: String) -> impl FnOnce(std::io::Error) -> RunError {
    move |error| RunError::File { what, error }
}

/// A step that was submitted.
struct StepUnderWay {
    step: usize,
    /// Over all ranks.
    samples: usize,
    metrics: PendingMetrics,
    started: Instant,
    /// What the host took to submit it.
    host: Duration,
    /// What it waited for its batch.
    data_wait: Duration,
}

impl StepUnderWay {
    /// Waits for its numbers. It took from when it was submitted, or the step before it ended, until now; on the host
    /// device, which ends a step before it is waited for, as long as its submission.
    fn wait(self, before_ended: &mut Option<Instant>) -> Result<StepDone, RunError> {
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
struct StepDone {
    step: usize,
    samples: usize,
    result: StepResult,
    seconds: f64,
    host: Duration,
    data_wait: Duration,
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
    let batches = plan.config.train.eval_steps.max(1);
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

/// Refuses a file that will be written at the end of a run and cannot be.
fn writable(flag: &str, path: &Path) -> Result<(), UserError> {
    std::fs::File::create(path).map(|_| ()).map_err(|error| {
        let rule = "it names a file that can be written";
        UserError::new(format!("{flag} {}: {error}", path.display()), rule, "name one in a folder that exists")
    })
}

/// Writes all graphs as JSON to `path`, and as Graphviz beside it.
fn write_report(stage: &mut Stage, path: &Path) -> std::io::Result<()> {
    let report = stage.graphs().report();
    std::fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    std::fs::write(path.with_extension("dot"), report.dot())
}

/// Peak FLOP/s of all ranks' GPUs, where it is known.
fn peak_flops(plan: &RunPlan, device: &Device) -> Option<f64> {
    let peak = peak_tflops(&device.gpu()?.name, &plan.config.precision.compute)?;
    Some(peak * 1e12 * plan.grid.ranks() as f64)
}

/// Tells people of steps.
struct Reporter<'p> {
    plan: &'p RunPlan,
    /// A progress bar on a terminal, lines elsewhere; nothing but on rank 0.
    bar: Option<ProgressBar>,
    memory: usize,
    /// Peak FLOP/s, where it is known.
    peak: Option<f64>,
    last_loss: f64,
    last_validation: Option<f64>,
}

impl<'p> Reporter<'p> {
    fn new(plan: &'p RunPlan, main: bool, memory: usize, peak: Option<f64>, start: usize) -> Reporter<'p> {
        let bar = main.then(|| {
            let bar = ProgressBar::with_draw_target(Some(plan.config.train.steps as u64), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed} of {eta} left  {msg}") {
                bar.set_style(style);
            }
            bar.set_position(start as u64);
            bar
        });
        Reporter { plan, bar, memory, peak, last_loss: f64::NAN, last_validation: None }
    }

    fn say(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.suspend(|| say(text));
            tracing::info!(target: PRINTED, "{text}");
        }
    }

    /// Tells a step's numbers and writes them down.
    fn tell(
        &mut self,
        done: &StepDone,
        validation_loss: Option<f64>,
        log: &mut Option<RunLog>,
    ) -> Result<(), RunError> {
        let StepDone { step, samples, ref result, seconds, host, data_wait } = *done;
        self.last_loss = result.loss;
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
        match log {
            Some(log) => {
                let file = format!("the metrics in {}", self.plan.config.logging.dir);
                log.write(&metrics).map_err(file_error(file))
            }
            None => Ok(()),
        }
    }

    /// Of a loss in nats a token; a model of rows has none.
    fn perplexity(&self, loss: f64) -> Option<f64> {
        matches!(self.plan.model, ModelPlan::Gpt(_)).then(|| loss.exp())
    }

    fn finish(&self, outcome: &Outcome) {
        let Some(bar) = &self.bar else { return };
        bar.finish_and_clear();
        if !outcome.finite {
            let kept = if self.plan.config.checkpoint.dir.is_some() { " Checkpoints are kept." } else { "" };
            warn(&format!(
                "error: the loss of the last step is {}: training diverged.{kept} Fix: go on from a checkpoint before \
                 that, or begin anew, with a smaller optimizer.lr",
                outcome.loss
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
                line += &format!(", {:.1} % above the floor of {floor:.4}", (loss / floor - 1.0) * 100.0);
            }
        }
        say(&line);
        tracing::info!(target: PRINTED, "{line}");
    }
}
