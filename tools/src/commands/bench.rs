//! `trainer bench`: the speed of a step without reading data or writing files, and the host's work meanwhile.

use std::time::Instant;

use clap::Args;
use common::{Mistakes, UserError};
use device::Device;
use device::cuda::{Counters, EnergyMeter};
use serde::Serialize;

use super::args::{RunFlags, sets_option, train_request};
use trainer::config::plan::{RunPlan, graph_scope};
use trainer::config::request::TrainRequest;
use trainer::error::RunError;
use trainer::process_group::ProcessGroup;
use trainer::report::gpu_peak::peak_tflops;
use trainer::run::auto_scope;
use trainer::run::random_steps::{Inputs, RandomSteps, median};
use trainer::run::set_up::load_start;

/// A benchmark.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// The training run with the steps to measure.
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
    ("olmoe-8-layers-4x1", &[("model.preset", "olmoe-1b-7b"), ("model.layers", "8"), ("train.micro_batch_size", "4"), ("train.global_batch_size", "4"), ("train.balance_loss_multiplier", "0.01"), ("precision.compute", "bf16")]),
    ("mixtral-3-layers-4x1", &[("model.preset", "mixtral-8x7b"), ("model.layers", "3"), ("model.seq_length", "4096"), ("train.micro_batch_size", "4"), ("train.global_batch_size", "4"), ("train.balance_loss_multiplier", "0.01"), ("precision.compute", "bf16")]),
    ("mlp", &[("model.preset", "mlp"), ("train.micro_batch_size", "640"), ("train.global_batch_size", "640"), ("precision.compute", "tf32"), ("optimizer.clip", "0.0")]),
];

/// The largest number of steps to measure, unless the command line sets `train.steps`.
pub(super) const STEPS: usize = 100;

/// Steps before anything is measured: warm-up, capture, and some until the speed is steady. Fewer of the last ones, but
/// two, if they take longer than [`PATIENCE`].
const SETTLE: usize = 10;

/// The largest number of steps with measured launches. Fewer, but [`FEWEST_LAUNCHES`], if they take longer than
/// [`PATIENCE`].
const LAUNCHES: usize = 200;

/// The smallest number of steps with measured launches.
const FEWEST_LAUNCHES: usize = 3;

/// How long the steps of a large model may take besides the measured steps, seconds: each kind of them so long.
const PATIENCE: f64 = 2.0;

/// Eager steps after the first, to measure the host's work without graphs.
const EAGER: usize = 3;

/// The smallest number of warm-up steps of a benchmark.
pub(super) const WARM_UP: usize = 1 + EAGER;

/// The flags of a measurement: those of a training run, or of a case.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// A case to measure.
    #[arg(value_name = "CASE", value_parser = CASES.iter().map(|(name, _)| *name).collect::<Vec<_>>())]
    case: Option<String>,
    #[command(flatten)]
    run: RunFlags,
}

impl Flags {
    /// The benchmark that a command line asks for, of at most `steps` steps unless the command line sets a number of
    /// steps. Everything that is wrong with the flags is added to `mistakes`, also a file that only a training run
    /// writes.
    pub(super) fn request(&self, command: &str, steps: usize, mistakes: &mut Mistakes) -> BenchRequest {
        let sets = self.case.as_deref().map(case);
        let sets = sets.map_or(vec![], |sets| [sets, &[("train.eval_interval", "0")][..]].concat());
        let mut run = train_request(&self.run, &sets, mistakes);
        mistakes.keep(refuse_files(command, &run));
        // The number of steps in a config file is meant for training, the one on the command line for the benchmark.
        let most = if sets_option(&self.run, "train.steps") { usize::MAX } else { steps };
        let steps = run.config.train.steps.min(most);
        run.config.train.steps = steps;
        run.config.train.epochs = None;
        BenchRequest { run, steps }
    }
}

/// The options that a case sets, by the case's name; none for an unknown name.
pub(super) fn case(name: &str) -> &'static [(&'static str, &'static str)] {
    CASES.iter().find(|(known, _)| *known == name).map_or(&[], |(_, sets)| sets)
}

/// Fails if a measurement is asked for a file that only a training run writes.
fn refuse_files(command: &str, run: &TrainRequest) -> Result<(), UserError> {
    let report = run.graph_report.as_ref().map(|path| format!("--graph-report {}", path.display()));
    let trace = run.config.logging.trace.as_ref().map(|path| format!("logging.trace = {path}"));
    let Some(asked) = report.or(trace) else { return Ok(()) };
    Err(UserError::new(
        format!("{command} with {asked}"),
        "a measurement prints its result and writes no files of runs",
        format!("leave it out, or train a few steps with it, without {command}"),
    ))
}

/// A measured case.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// The GPU's name, or `host`.
    pub device: String,
    /// `off`, or the extent of one graph.
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
    /// Median time to submit a step to an idle device that has the inputs already: control block and graphs,
    /// microseconds.
    pub launch_us: f64,
    /// The same, with the copies of new inputs to the device, microseconds.
    pub launch_with_inputs_us: f64,
    /// Median time of all calls of a step whose inputs are there already, with the read-back of the step's numbers,
    /// microseconds.
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
    /// The host's work in the steady steps.
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
    /// A line for runs to which graphs bring nothing, because the host would keep ahead of the GPU without graphs. The
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

/// How often two steps are in flight at once before anything is measured, if `affordable` steps may be run. At least
/// once: the memory for the second step's numbers is allocated then.
fn settling_pairs(affordable: usize) -> usize {
    (SETTLE / 2).min(affordable / 2).max(1)
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
    let plan = &auto_scope::resolve(plan, group, device)?;
    let mut run = RandomSteps::new(plan, group, device)?;
    load_start(plan, device, run.stage())?;
    run.step(Inputs::Copied)?;
    let first_step_s = started.elapsed().as_secs_f64();
    let eager_issue_us = run.submissions(EAGER, Inputs::Copied)?.issue_us;
    // A step that is captured, and one that shows how long steps take.
    let mut slowest = 0;
    for _ in 0..2 {
        let started = Instant::now();
        run.step(Inputs::Copied)?;
        slowest = group.control.max(started.elapsed().as_micros() as u64);
    }
    let affordable = (PATIENCE * 1e6 / slowest.max(1) as f64) as usize;
    for _ in 0..settling_pairs(affordable) {
        let in_flight = run.submit(Inputs::Copied)?.0;
        run.step(Inputs::Copied)?;
        in_flight.wait()?;
    }
    let launches = steps.min(LAUNCHES).min(affordable.max(FEWEST_LAUNCHES));
    let there = run.submissions(launches, Inputs::There)?;
    let copied = run.submissions(launches, Inputs::Copied)?;

    let meter = device.gpu().and_then(|gpu| EnergyMeter::open(&gpu.uuid));
    let joules_before = meter.as_ref().and_then(EnergyMeter::joules);
    let row = run.in_a_row(steps)?;
    let joules = meter.as_ref().and_then(EnergyMeter::joules).zip(joules_before);
    let seconds = row.milliseconds.iter().sum::<f64>() / 1e3 / steps as f64;
    let tokens_per_s = plan.tokens_per_step() as f64 / seconds;
    let tflops = tokens_per_s * plan.size.flops_per_token / 1e12 / plan.parallel.mesh.ranks() as f64;
    let gpu = device.gpu();
    let peak = gpu.as_ref().and_then(|gpu| peak_tflops(&gpu.name, plan.config.precision.compute));
    let memory_bytes = device.memory_in_use()?;
    let result = BenchResult {
        device: gpu.map_or("host".into(), |gpu| gpu.name),
        graphs: if plan.graphs.enable { graph_scope(&plan.config.cuda_graph) } else { "off".into() },
        ranks: plan.parallel.mesh.ranks(),
        step_ms: median(row.milliseconds),
        tokens_per_s,
        tflops,
        mfu: peak.map(|peak| tflops / peak),
        launch_us: there.launch_us,
        launch_with_inputs_us: copied.launch_us,
        issue_us: there.issue_us,
        issue_with_inputs_us: copied.issue_us,
        eager_issue_us,
        // Two steps more than were timed.
        joules_per_step: joules.map(|(after, before)| (after - before) / (steps + 2) as f64),
        memory_bytes,
        first_step_s,
        loss: row.loss,
        steady: SteadyCounts::between(steps, row.before, row.after),
    };
    run.end()?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use device::cuda::Counters;

    use super::{BenchResult, SteadyCounts, settling_pairs};
    use crate::commands::cli::{Request, parse};

    #[test]
    fn steps_of_any_length_have_been_two_in_flight_before_allocations_are_counted() {
        assert_eq!([0, 1, 3, 4, 10, 1000].map(settling_pairs), [1, 1, 1, 2, 5, 5]);
    }

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
