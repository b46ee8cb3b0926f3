//! A run: the loop over steps, evaluation, and what ends it.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::UserError;
use common::terminal::{PRINTED, say};
use data::{self, BATCHES_IN_MEMORY, Identities, Prefetch, Source, Split};
use device::{Device, Staging};
use engine::regions::Mode;
use engine::step::{Stage, StepSettings};
use launch::watch::activity::Doing;

use crate::checkpoint::{Occasion, Progress, Session};
use crate::config::plan::RunPlan;
use crate::config::request::TrainRequest;
use crate::error::{RunError, file_error};
use crate::ranks::Ranks;
use crate::report::plan_box::plan_box;
use crate::report::reporter::{Outcome, Reporter, StepUnderWay, peak_flops};
use crate::report::run_log::RunLog;
use crate::run::folder;
use crate::run::set_up::{load_start, settings, stage};
use crate::run::trace::StepTrace;

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
    let mut batches =
        stage.needs_batch().then(|| prefetch(plan, ranks.rank, source.clone(), start, stage)).transpose()?;
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
        let (mut batch, mut data_wait) = (None, Duration::ZERO);
        if let Some(batches) = &mut batches {
            let (next, waited) = ranks.activity.during(waits, || batches.next_batch())?;
            (batch, data_wait) = (Some(next), waited);
        }
        trace.before_step(device)?;
        let settled = stage.graphs().is_settled(Mode::Train, settings.microbatches);
        ranks.activity.set(if settled { Doing::Steps } else { Doing::Starts });
        let metrics = stage.train_step(settings, batch.as_ref())?;
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
                let occasion = if last { Occasion::End } else { Occasion::Interval };
                if session.save(stage, progress, occasion)? && report.is_sound() {
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
    let taken = folder::take(folder, session.run(), session.continues_at());
    if let Some(aside) = taken.map_err(file("the run's folder"))? {
        say(&format!("metrics of another run are now in {}", aside.display()));
    }
    let resolved = toml::to_string(&plan.config).unwrap_or_default();
    std::fs::write(folder.join("config.toml"), resolved).map_err(file("config.toml"))?;
    RunLog::open(&plan.config.logging, session.progress().step).map_err(file("metrics.jsonl"))
}

/// Begins to read the batches of all steps to come.
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
    let batches = Prefetch::start(source, steps, stage.staging(BATCHES_IN_MEMORY)?, move |step| {
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

/// What the host decides for a training step that comes after so many samples.
fn training_settings(plan: &RunPlan, rank: usize, step: usize, consumed: u64) -> StepSettings {
    settings(plan, rank, step, consumed, plan.batch_size.microbatches_after(consumed))
}

/// Mean loss over the first validation batches, the same ones each time.
fn evaluate(plan: &RunPlan, stage: &mut Stage, source: &dyn Source, rank: usize) -> Result<f64, RunError> {
    let batches = plan.config.train.eval_steps;
    let mut total = 0.0;
    for index in 0..batches {
        let first = (index * plan.config.train.global_batch_size) as u64;
        let settings = settings(plan, rank, index, first, plan.microbatches);
        let samples = plan.microbatches * plan.config.train.micro_batch_size;
        let mut batch = None;
        if stage.needs_batch() {
            batch = Some(source.batch(Split::Validation, settings.first_sample, samples, &Staging::default())?);
        }
        total += stage.evaluate(settings, batch.as_ref())?.wait()?.loss;
    }
    Ok(total / batches as f64)
}

/// Writes all graphs as JSON to `path`, and as Graphviz beside it.
fn write_report(stage: &mut Stage, path: &Path) -> std::io::Result<()> {
    let report = stage.graphs().report();
    std::fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    std::fs::write(path.with_extension("dot"), report.dot())
}
