//! `trainer bench`: the speed of a step without reading data or writing files, and what the host does meanwhile.

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::time::Instant;

use clap::{Arg, ArgMatches, Command};
use common::UserError;
use device::cuda::Counters;
use device::{Device, Element, HostArray, HostValues, Staging};
use engine::step::PendingMetrics;
use serde::Serialize;

use super::args::{sets_option, text, train_request, with_run_flags};
use super::random::uniform;
use crate::config::graph_plan::graph_scope;
use crate::config::plan::{ModelPlan, RunPlan};
use crate::config::request::TrainRequest;
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::report::energy::EnergyMeter;
use crate::report::gpu_peak::peak_tflops;
use crate::run::set_up::{load_start, stage, step_settings};

/// A benchmark.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// The training run whose steps are measured.
    pub run: TrainRequest,
    /// Steps to measure.
    pub steps: usize,
}

/// A measured case of the tables in `bench/results`: its name, and the options that it sets.
type Case = (&'static str, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("gpt2-124m-64x1", &[("model.preset", "gpt2-124m"), ("train.micro_batch_size", "64"), ("train.global_batch_size", "64"), ("precision.compute", "bf16")]),
    ("gpt2-124m-4x8", &[("model.preset", "gpt2-124m"), ("train.micro_batch_size", "4"), ("train.global_batch_size", "32"), ("precision.compute", "bf16")]),
    ("gpt2-350m-16x1", &[("model.preset", "gpt2-350m"), ("train.micro_batch_size", "16"), ("train.global_batch_size", "16"), ("precision.compute", "bf16")]),
    ("gpt-1.3b-8x1", &[("model.preset", "gpt-1.3b"), ("train.micro_batch_size", "8"), ("train.global_batch_size", "8"), ("precision.compute", "bf16")]),
    ("gpt-1.3b-1x4", &[("model.preset", "gpt-1.3b"), ("train.micro_batch_size", "1"), ("train.global_batch_size", "4"), ("precision.compute", "bf16")]),
    ("mlp", &[("model.preset", "mlp"), ("train.micro_batch_size", "640"), ("train.global_batch_size", "640"), ("precision.compute", "tf32"), ("optimizer.clip", "0.0")]),
];

/// The largest number of steps to measure, unless the command line sets `train.steps`.
const STEPS: usize = 100;

/// Steps before anything is measured: warm-up, capture, and some until the speed is steady. Fewer of the last ones if they
/// take longer than [`PATIENCE`].
const SETTLE: usize = 10;

/// The largest number of steps whose launches are measured. Fewer, but [`FEWEST_LAUNCHES`], if they take longer than
/// [`PATIENCE`].
const LAUNCHES: usize = 200;

/// The smallest number of steps whose launches are measured.
const FEWEST_LAUNCHES: usize = 3;

/// How long the steps of a large model may take that are not the measured ones, seconds: each kind of them so long.
const PATIENCE: f64 = 2.0;

/// Eager steps after the first, to measure what the host would have to do without graphs.
const EAGER: usize = 3;

/// The smallest number of warm-up steps of a benchmark.
pub(super) const WARM_UP: usize = 1 + EAGER;

pub(super) fn command() -> Command {
    let names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
    let bench = Command::new("bench")
        .about(format!(
            "Measures the speed of training steps on random data; takes the flags of a training run. {STEPS} steps unless --steps is given"
        ))
        .arg(Arg::new("case").value_name("CASE").value_parser(names).help("A case to measure"));
    with_run_flags(bench)
}

/// The benchmark that a command line asks for.
///
/// # Errors
/// Everything that is wrong with the flags; a file that only a training run writes.
pub(super) fn request(matches: &ArgMatches) -> Result<BenchRequest, UserError> {
    let case = text(matches, "case");
    let case = CASES.iter().find(|(name, _)| Some(*name) == case.as_deref());
    let preset: Vec<_> = case.map_or(vec![], |(_, sets)| [sets, &[("train.eval_interval", "0")][..]].concat());
    let mut run = train_request(matches, &preset)?;
    refuse_files(&run)?;
    // The number of steps in a config file is meant for training, the one on the command line for the benchmark.
    let most = if sets_option(matches, "train.steps") { usize::MAX } else { STEPS };
    let steps = run.config.train.steps.min(most);
    run.config.train.steps = steps;
    Ok(BenchRequest { run, steps })
}

/// Fails if a benchmark is asked for a file that only a training run writes.
fn refuse_files(run: &TrainRequest) -> Result<(), UserError> {
    let report = run.graph_report.as_ref().map(|path| format!("--graph-report {}", path.display()));
    let trace = run.config.logging.trace.as_ref().map(|path| format!("logging.trace = {path}"));
    let Some(asked) = report.or(trace) else { return Ok(()) };
    Err(UserError::new(
        format!("bench with {asked}"),
        "a benchmark prints its result and writes no files",
        "leave it out, or train a few steps with it, without bench",
    ))
}

/// A measured case.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// The GPU's name, or `host`.
    pub device: String,
    /// `off`, or what becomes one graph.
    pub graphs: String,
    /// Ranks.
    pub ranks: usize,
    /// Median wall time of a step in a steady run, milliseconds.
    pub step_ms: f64,
    /// Tokens (or rows) per second over all ranks.
    pub tokens_per_s: f64,
    /// Model TFLOP/s of a rank.
    pub tflops: f64,
    /// Share of the data sheet's peak.
    pub mfu: Option<f64>,
    /// Median time to submit a step to an idle device whose inputs are already there: control block and graphs,
    /// microseconds.
    pub launch_us: f64,
    /// The same, with the copies of new inputs to the device, microseconds.
    pub launch_with_inputs_us: f64,
    /// Median time of all calls of a step on inputs that are already there, with the read-back of its numbers, microseconds.
    pub issue_us: f64,
    /// The same on new inputs, microseconds.
    pub issue_with_inputs_us: f64,
    /// The same of a step that runs eagerly, as all do without graphs, microseconds.
    pub eager_issue_us: f64,
    /// Energy of this rank's GPU for a steady step, joules, by NVML. `null` without it.
    pub joules_per_step: Option<f64>,
    /// Bytes of device memory in use.
    pub memory_bytes: usize,
    /// Seconds from the process's start to the end of the first step.
    pub first_step_s: f64,
    /// Loss of the last step. It shows that something was computed.
    pub loss: f64,
    /// What the host did in the steady steps.
    pub steady: SteadyCounts,
}

/// Counts over the steady steps. Allocations, synchronizations and blocking copies should be 0.
#[derive(Clone, Debug, Serialize)]
pub struct SteadyCounts {
    /// Steady steps.
    pub steps: usize,
    /// Allocations of device or pinned memory.
    pub allocations: u64,
    /// Waits for a stream or the device.
    pub synchronizations: u64,
    /// Copies that the host waited for.
    pub blocking_copies: u64,
    /// Waits for a step's numbers: one per step, for the step before.
    pub metric_waits: u64,
    /// Waits until pinned memory could be refilled.
    pub staging_waits: u64,
    /// Graph launches.
    pub graph_launches: u64,
    /// Operations submitted one by one, to run or to be captured. Those of a graph launch do not count.
    pub eager_operations: u64,
}

impl BenchResult {
    /// A line for runs with graphs that cannot gain by them, because the host would keep ahead of the GPU without them. The
    /// host device has no GPU to be ahead of: to submit an operation is to run it.
    pub(super) fn gains_nothing(&self) -> Option<String> {
        let (host, step) = (self.eager_issue_us / 1e3, self.step_ms);
        // The host is one step ahead. Half of the time leaves room for steps that it takes longer for.
        (self.device != "host" && self.graphs != "off" && host < step / 2.0).then(|| {
            format!(
                "notice: graphs gain nothing here. Without them the host submits a step in {host:.1} ms, and the GPU needs \
                 {step:.1} ms for it: the GPU is the limit"
            )
        })
    }
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

/// Measures `steps` steady steps on fixed random data. The process started at `started`.
///
/// # Errors
/// See [`RunError`].
pub(super) fn measure(
    plan: &RunPlan,
    group: &ProcessGroup,
    device: &Device,
    steps: usize,
    started: Instant,
) -> Result<BenchResult, RunError> {
    // As in training, nothing is torn down on a fault.
    let mut stage = ManuallyDrop::new(stage(plan, device, group)?);
    load_start(plan, device, &stage)?;
    let batch = random_batch(plan, &stage.staging(1)?);
    let mut step = 0;
    let mut timed = |batch: Option<&HostValues>| -> Result<(PendingMetrics, Instant), RunError> {
        let share = plan.batch.share_of_global((step * plan.batch.global) as u64, plan.parallel.data_rank(group.rank));
        let losses = stage.submit(step_settings(&plan.optimizer, step, share), batch)?;
        let launched = Instant::now();
        step += 1;
        Ok((stage.metrics(losses)?, launched))
    };
    timed(Some(&batch))?.0.wait()?;
    let first_step_s = started.elapsed().as_secs_f64();
    // Median times to submit so many steps, and of all their calls, each on an idle device.
    let issue = |timed: Timed<'_>, steps: usize, batch: Option<&HostValues>| -> Result<(f64, f64), RunError> {
        let (mut submits, mut times) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            device.synchronize()?;
            let started = Instant::now();
            let (pending, launched) = timed(batch)?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
            submits.push(launched.duration_since(started).as_secs_f64() * 1e6);
            pending.wait()?;
        }
        Ok((median(submits), median(times)))
    };
    let (_, eager_issue_us) = issue(&mut timed, EAGER, Some(&batch))?;
    // A step that is captured, and one that shows how long steps take.
    let mut slowest = 0;
    for _ in 0..2 {
        let started = Instant::now();
        timed(Some(&batch))?.0.wait()?;
        slowest = group.control.max(started.elapsed().as_micros() as u64);
    }
    let affordable = (PATIENCE * 1e6 / slowest.max(1) as f64) as usize;
    for _ in 0..(SETTLE / 2).min(affordable / 2) {
        let in_flight = timed(Some(&batch))?.0;
        timed(Some(&batch))?.0.wait()?;
        in_flight.wait()?;
    }
    let launches = steps.min(LAUNCHES).min(affordable.max(FEWEST_LAUNCHES));
    let (launch_us, issue_us) = issue(&mut timed, launches, None)?;
    let (launch_with_inputs_us, issue_with_inputs_us) = issue(&mut timed, launches, Some(&batch))?;

    let meter = device.gpu().and_then(|gpu| EnergyMeter::open(&gpu.uuid));
    group.control.barrier();
    device.synchronize()?;
    let before = device.counters();
    let joules_before = meter.as_ref().and_then(EnergyMeter::joules);
    let mut ends = vec![Instant::now()];
    let mut in_flight = timed(None)?.0;
    let mut loss = f64::NAN;
    for _ in 0..steps {
        let submitted = timed(None)?.0;
        loss = std::mem::replace(&mut in_flight, submitted).wait()?.loss;
        ends.push(Instant::now());
    }
    let joules = meter.as_ref().and_then(EnergyMeter::joules).zip(joules_before);
    let after = device.counters();
    in_flight.wait()?;
    let seconds = ends[steps].duration_since(ends[0]).as_secs_f64() / steps as f64;
    let each = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3).collect();
    let tokens_per_s = plan.tokens_per_step() as f64 / seconds;
    let tflops = tokens_per_s * plan.size.flops_per_token / 1e12 / plan.parallel.grid.ranks() as f64;
    let gpu = device.gpu();
    let peak = gpu.as_ref().and_then(|gpu| peak_tflops(&gpu.name, plan.config.precision.compute));
    let memory_bytes = device.memory_in_use()?;
    let result = BenchResult {
        device: gpu.map_or("host".into(), |gpu| gpu.name),
        graphs: if plan.graphs.enable { graph_scope(&plan.config.cuda_graph) } else { "off".into() },
        ranks: plan.parallel.grid.ranks(),
        step_ms: median(each),
        tokens_per_s,
        tflops,
        mfu: peak.map(|peak| tflops / peak),
        launch_us,
        launch_with_inputs_us,
        issue_us,
        issue_with_inputs_us,
        eager_issue_us,
        joules_per_step: joules.map(|(after, before)| (after - before) / steps as f64),
        memory_bytes,
        first_step_s,
        loss,
        steady: SteadyCounts::between(steps, before, after),
    };
    drop(ManuallyDrop::into_inner(stage));
    Ok(result)
}

/// Submits a step on new inputs, or on those that are there; also returns when its work was submitted.
type Timed<'t> = &'t mut dyn FnMut(Option<&HostValues>) -> Result<(PendingMetrics, Instant), RunError>;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Random samples for a rank's share of a step.
fn random_batch(plan: &RunPlan, staging: &Staging) -> HostValues {
    let samples = plan.batch.microbatches() * plan.batch.micro;
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use device::cuda::Counters;

    use super::{BenchResult, SteadyCounts};
    use crate::commands::cli::{Request, parse};

    #[test]
    fn graphs_gain_nothing_where_the_host_is_far_ahead_of_the_gpu_without_them() {
        let result_on = |device: &str, graphs: &str, eager_issue_us, step_ms| BenchResult {
            device: device.into(),
            graphs: graphs.into(),
            ranks: 1,
            step_ms,
            tokens_per_s: 1.0,
            tflops: 1.0,
            mfu: None,
            launch_us: 168.0,
            launch_with_inputs_us: 170.0,
            issue_us: 180.0,
            issue_with_inputs_us: 182.0,
            eager_issue_us,
            joules_per_step: None,
            memory_bytes: 1,
            first_step_s: 1.0,
            loss: 1.0,
            steady: SteadyCounts::between(1, Counters::default(), Counters::default()),
        };
        let result = |graphs, eager_issue_us, step_ms| result_on("a GPU", graphs, eager_issue_us, step_ms);
        let line = result("per_layer", 2596.0, 109.6).gains_nothing().unwrap();
        assert_eq!(
            line,
            "notice: graphs gain nothing here. Without them the host submits a step in 2.6 ms, and the GPU needs 109.6 ms \
             for it: the GPU is the limit"
        );
        assert_eq!(result("per_layer", 48_970.0, 66.0).gains_nothing(), None, "the host is the limit");
        assert_eq!(result("off", 2596.0, 109.6).gains_nothing(), None);
        assert_eq!(
            result_on("host", "per_layer", 31_355.0, 77.4).gains_nothing(),
            None,
            "a busy host has no GPU either"
        );
    }

    #[test]
    fn a_benchmark_measures_100_steps_or_as_many_as_the_command_line_says() {
        for (line, expected) in [
            ("trainer bench mlp", 100),
            ("trainer bench --config tiny-laptop", 100),
            ("trainer bench mlp --steps 7", 7),
            ("trainer bench mlp --steps 150", 150),
            ("trainer bench mlp --train-iters 1500", 1500),
            ("trainer bench --config tiny-laptop --set train.steps=150", 150),
        ] {
            match parse(line.split_whitespace().map(OsString::from)).unwrap() {
                Request::Bench(request) => {
                    assert_eq!((request.steps, request.run.config.train.steps), (expected, expected), "{line}");
                }
                other => panic!("{line} is {other:?}"),
            }
        }
    }
}
