//! `trainer bench`: how fast a step is, apart from data and files, and what the host does meanwhile.

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::time::Instant;

use device::cuda::Counters;
use device::{Device, Element, HostArray, HostValues, Staging};
use engine::step::PendingMetrics;
use serde::Serialize;

use crate::commands::random::uniform;
use crate::config::plan::{ModelPlan, RunPlan};
use crate::error::RunError;
use crate::ranks::Ranks;
use crate::run::accelerator::peak_tflops;
use crate::run::set_up::{load_start, settings, stage};

/// What a preset sets, over the defaults and under flags: the cases of the tables in `bench/results`.
pub fn preset(name: &str) -> Option<Vec<(&'static str, &'static str)>> {
    let batch = |model, micro, global, extra: &[(&'static str, &'static str)]| {
        let mut all = vec![
            ("model.preset", model),
            ("train.micro_batch_size", micro),
            ("train.global_batch_size", global),
            ("train.eval_interval", "0"),
        ];
        all.extend(extra);
        all
    };
    let bf16 = [("precision.compute", "bf16")];
    Some(match name {
        "gpt2-124m-64x1" => batch("gpt2-124m", "64", "64", &bf16),
        "gpt2-124m-4x8" => batch("gpt2-124m", "4", "32", &bf16),
        "gpt2-350m-16x1" => batch("gpt2-350m", "16", "16", &bf16),
        "gpt-1.3b-8x1" => batch("gpt-1.3b", "8", "8", &bf16),
        "gpt-1.3b-1x4" => batch("gpt-1.3b", "1", "4", &bf16),
        "mlp" => batch("mlp", "640", "640", &[("precision.compute", "tf32"), ("optimizer.clip", "0.0")]),
        _ => return None,
    })
}

/// The names [`preset`] knows.
pub const PRESETS: &[&str] =
    &["gpt2-124m-64x1", "gpt2-124m-4x8", "gpt2-350m-16x1", "gpt-1.3b-8x1", "gpt-1.3b-1x4", "mlp"];

/// Steps before anything is measured: warm-up, capture, and some to settle.
const SETTLE: usize = 10;

/// A measured case.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// The GPU's name, or `host`.
    pub device: String,
    /// `off`, `per_layer` or `full_iteration`.
    pub graphs: String,
    /// Ranks.
    pub ranks: usize,
    /// Median wall time of a step in a steady run, milliseconds.
    pub step_ms: f64,
    /// Tokens (or rows) per second over all ranks.
    pub tokens_per_s: f64,
    /// Model TFLOP/s a rank.
    pub tflops: f64,
    /// Share of the data sheet's peak.
    pub mfu: Option<f64>,
    /// Median time to submit a step to an idle device, inputs in place: control block and graphs, microseconds.
    pub launch_us: f64,
    /// The same with the copies of new inputs.
    pub launch_with_inputs_us: f64,
    /// All of a step on the old inputs: with the read-back of its numbers.
    pub issue_us: f64,
    /// All of a step on new inputs.
    pub issue_with_inputs_us: f64,
    /// Bytes of device memory in use.
    pub memory_bytes: usize,
    /// Seconds from the process's start to the end of the first step.
    pub first_step_s: f64,
    /// Loss of the last step, to see that something was computed.
    pub loss: f64,
    /// What happened in the steady steps that must not.
    pub steady: SteadyCounts,
}

/// Counts over [`BenchResult`]'s steady steps.
#[derive(Clone, Debug, Serialize)]
pub struct SteadyCounts {
    /// The steps.
    pub steps: usize,
    /// Device or pinned memory allocated.
    pub allocations: u64,
    /// Waits for a stream or the device.
    pub synchronizations: u64,
    /// Copies the host waited for.
    pub blocking_copies: u64,
    /// Waits for a step's numbers: one a step, for the step before.
    pub metric_waits: u64,
    /// Waits until pinned memory could be filled again.
    pub staging_waits: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Operations submitted one by one, to run or to be captured; none of a graph's launch.
    pub eager_operations: u64,
}

impl SteadyCounts {
    fn between(steps: usize, before: Counters, after: Counters) -> SteadyCounts {
        SteadyCounts {
            steps,
            allocations: after.allocations - before.allocations,
            synchronizations: after.synchronizations - before.synchronizations,
            blocking_copies: after.blocking_copies - before.blocking_copies,
            metric_waits: after.metric_waits - before.metric_waits,
            staging_waits: after.staging_waits - before.staging_waits,
            graph_launches: after.graph_launches - before.graph_launches,
            eager_operations: after.eager_operations - before.eager_operations,
        }
    }
}

/// Measures `steps` steady steps of a plan on fixed random data.
///
/// # Errors
/// See [`RunError`].
pub fn run(
    plan: &RunPlan,
    ranks: &Ranks,
    device: &Device,
    steps: usize,
    began: Instant,
) -> Result<BenchResult, RunError> {
    // As in training, on a fault nothing is torn down.
    let mut stage = ManuallyDrop::new(stage(plan, device, ranks)?);
    load_start(plan, device, &stage)?;
    let batch = random_batch(plan, &stage.staging(1)?);
    let mut step = 0;
    // A step on its way, and when its work was submitted.
    let mut timed = |batch: Option<&HostValues>| -> Result<(PendingMetrics, Instant), RunError> {
        let first = (step * plan.config.train.global_batch_size) as u64;
        let losses = stage.submit(settings(plan, ranks.rank, step, first, plan.microbatches), batch)?;
        let launched = Instant::now();
        step += 1;
        Ok((stage.metrics(losses)?, launched))
    };
    let mut next = |batch: Option<&HostValues>| timed(batch).map(|(pending, _)| pending);
    next(Some(&batch))?.wait()?;
    let first_step_s = began.elapsed().as_secs_f64();
    for _ in 0..SETTLE / 2 {
        let under_way = next(Some(&batch))?;
        next(Some(&batch))?.wait()?;
        under_way.wait()?;
    }
    let mut issue = |batch: Option<&HostValues>| -> Result<(f64, f64), RunError> {
        let (mut launches, mut times) = (Vec::new(), Vec::new());
        for _ in 0..steps.min(200) {
            device.synchronize()?;
            let started = Instant::now();
            let (pending, launched) = timed(batch)?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
            launches.push(launched.duration_since(started).as_secs_f64() * 1e6);
            pending.wait()?;
        }
        Ok((median(launches), median(times)))
    };
    let (launch_us, issue_us) = issue(None)?;
    let (launch_with_inputs_us, issue_with_inputs_us) = issue(Some(&batch))?;
    let mut next = |batch: Option<&HostValues>| timed(batch).map(|(pending, _)| pending);

    (ranks.barrier)();
    device.synchronize()?;
    let before = device.counters();
    let mut ends = vec![Instant::now()];
    let mut under_way = next(None)?;
    let mut loss = f64::NAN;
    for _ in 0..steps {
        let submitted = next(None)?;
        loss = std::mem::replace(&mut under_way, submitted).wait()?.loss;
        ends.push(Instant::now());
    }
    let after = device.counters();
    under_way.wait()?;
    let seconds = ends[steps].duration_since(ends[0]).as_secs_f64() / steps as f64;
    let each = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3).collect();
    let tokens_per_s = plan.tokens_per_step as f64 / seconds;
    let tflops = tokens_per_s * plan.flops_per_token / 1e12 / plan.grid.ranks() as f64;
    let gpu = device.gpu();
    let peak = gpu.as_ref().and_then(|gpu| peak_tflops(&gpu.name, &plan.config.precision.compute));
    let memory_bytes = device.memory_in_use()?;
    let result = BenchResult {
        device: gpu.map_or("host".into(), |gpu| gpu.name),
        graphs: if plan.graphs.enable { plan.config.cuda_graph.scope.clone() } else { "off".into() },
        ranks: plan.grid.ranks(),
        step_ms: median(each),
        tokens_per_s,
        tflops,
        mfu: peak.map(|peak| tflops / peak),
        launch_us,
        launch_with_inputs_us,
        issue_us,
        issue_with_inputs_us,
        memory_bytes,
        first_step_s,
        loss,
        steady: SteadyCounts::between(steps, before, after),
    };
    drop(ManuallyDrop::into_inner(stage));
    Ok(result)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Random samples of a step.
fn random_batch(plan: &RunPlan, staging: &Staging) -> HostValues {
    let samples = plan.microbatches * plan.config.train.micro_batch_size;
    match &plan.model {
        ModelPlan::Gpt(shape) => {
            let token = |x: f32| (x * shape.vocab as f32) as i32 % shape.vocab as i32;
            HostValues::I32(random_array(staging, samples * (shape.seq + 1), token))
        }
        ModelPlan::Mlp(shape) => {
            let width = shape.sizes[0] + shape.sizes[shape.sizes.len() - 1];
            HostValues::F32(random_array(staging, samples * width, |x| 2.0 * x - 1.0))
        }
    }
}

/// An array of `value(x)` for random `x` in [0, 1).
fn random_array<T: Element>(staging: &Staging, count: usize, value: impl Fn(f32) -> T) -> HostArray<T> {
    let Ok(array) = staging.array(count, |values: &mut [T]| {
        (0..).zip(values).for_each(|(i, to)| *to = value(uniform(1, i)));
        Ok::<(), Infallible>(())
    });
    array
}
