//! `trainer doctor`: checks that this machine can train and that every operation is right, and measures its speed.

mod card_rates;
mod card_table;
mod command;
mod finding;
mod rates;
mod table;
mod transfers;

use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use common::Choice;
use common::format::counted;
use common::terminal::{print, say, shows_status, status, warn};
use device::cuda::{FP8_CAPABILITY, compile_sets, library_versions, why_no_gpu};
use device::trials::{self, Case, Workbench};
use device::{Communicator, Device, Stream};
use engine::precision::Precision;
use parallel::NcclVersion;

use crate::commands::args::{device, path};
pub(crate) use command::run;
pub use finding::{Finding, Verdict};
use rates::Unit;
use trainer::config::DeviceChoice;
use trainer::report::gpu_peak::peak_tflops;

/// The checks to make.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct DoctorRequest {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Do not measure rates.
    #[arg(long)]
    pub quick: bool,
    /// Print a line for each check, also for those that passed.
    #[arg(long)]
    pub verbose: bool,
    /// Instead of checking, measure the GPU and write the file about it that `trainer plan --gpu FILE` reads.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub card: Option<PathBuf>,
    /// Device to examine.
    #[arg(long, value_name = "device", default_value = DeviceChoice::Auto.word(), value_parser = device())]
    pub device: DeviceChoice,
}

/// Checks the device and the communication between ranks; prints a table on rank 0 and returns the exit code. `group` are all
/// ranks, if there are several. `refused` says why a GPU that is there cannot be used.
fn check(
    request: &DoctorRequest,
    device: &Device,
    group: Option<&Rc<dyn Communicator>>,
    refused: Option<String>,
) -> i32 {
    // The first time on a machine. Operations that need none of these kernels are checked meanwhile.
    let compiling = device.gpu().map(|gpu| std::thread::spawn(move || compile_sets(&gpu)));
    let mut findings = machine(device, request.device, refused);
    let eight_bit = device.gpu().is_none_or(|gpu| gpu.capability >= FP8_CAPABILITY);
    let hopper = device.gpu().is_none_or(|gpu| gpu.is_hopper());
    let cases: Vec<Case> = trials::all(hopper).into_iter().filter(|case| eight_bit || !case.dtype.is_fp8()).collect();
    let prints = group.is_none_or(|group| group.rank() == 0);
    let now = |text: &str| {
        if prints {
            status(text);
        }
    };
    if prints && device.gpu().is_some() && !shows_status() {
        warn(&format!(
            "checking {}: half a minute on a GPU, or one to two minutes the first time",
            counted(cases.len(), "operation")
        ));
    }
    let stream = device.stream("trials");
    for (number, case) in (1..).zip(&cases) {
        now(&format!("checking operation {number} of {}: {}", cases.len(), case.name));
        findings.push(operation(case, &stream));
    }
    if let Some(compiling) = compiling {
        _ = compiling.join(); // all operations that need its kernels were checked
    }
    if let Some(group) = group {
        now("checking transfers between ranks");
        findings.extend(transfers::check(device, group));
    }
    if !request.quick && device.gpu().is_some() {
        now("measuring rates");
        findings.extend(rates(device, group));
    }
    now("");
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    if prints {
        let lines = table::shown(&findings, request);
        match request.json {
            // A reader that has gone away has read all it wanted.
            true => _ = print(&lines.concat()),
            false => lines.iter().for_each(|line| say(line)),
        }
    }
    if failed == 0 { 0 } else { 3 }
}

/// The trial of an operation.
fn operation(case: &Case, stream: &Stream) -> Finding {
    let trials::Outcome { right, text } = trials::run(case, stream);
    let name = format!("{}, {}", case.name, case.dtype);
    Finding { about: "operation", name, value: text, verdict: Verdict::of(right) }
}

fn machine(device: &Device, choice: DeviceChoice, refused: Option<String>) -> Vec<Finding> {
    let fact = |name: &str, value: String, verdict| Finding { about: "machine", name: name.into(), value, verdict };
    let Some(gpu) = device.gpu() else {
        let why = match (refused, choice) {
            (Some(error), _) => fact("GPU", format!("cannot be used: {error}"), Verdict::Fail),
            (None, DeviceChoice::Host) => fact("GPU", "not examined: --device host".into(), Verdict::Ok),
            _ => {
                let why = why_no_gpu().map_or_else(String::new, |none| format!(": {}. Fix: {}", none.why, none.fix));
                fact("GPU", format!("none is used{why}"), Verdict::Lacks)
            }
        };
        return vec![fact("device", "host".into(), Verdict::Ok), mpi(), why];
    };
    let (capability, driver) = (gpu.capability, gpu.driver_version);
    let mut facts = vec![
        fact("GPU", gpu.name.clone(), Verdict::Ok),
        fact("compute capability", format!("{}.{}", capability.0, capability.1), Verdict::of(capability.0 >= 8)),
        fact("memory", format!("{:.1} GiB", gpu.memory_bytes as f64 / (1u64 << 30) as f64), Verdict::Ok),
        fact("driver's CUDA", format!("{}.{}", driver / 1000, driver % 1000 / 10), Verdict::Ok),
        mpi(),
    ];
    let mut libraries = library_versions();
    let nccl = parallel::nccl_version();
    libraries.push(("NCCL", nccl.map(|version| version.to_string())));
    for (name, version) in libraries {
        let (without, cost) = match name {
            "cuDNN" => (Verdict::Lacks, "; attention runs on slower kernels"),
            "NCCL" => (Verdict::Lacks, "; only one rank can train"),
            _ => (Verdict::Fail, ""),
        };
        let missing = || {
            format!(
                "not found on LD_LIBRARY_PATH, in the system's folders or in Python packages beside the program{cost}"
            )
        };
        let verdict = if version.is_some() { Verdict::Ok } else { without };
        facts.push(fact(name, version.unwrap_or_else(missing), verdict));
    }
    if let Some(old) = nccl.filter(|version| !version.works_in_graphs()) {
        let value = format!("not with NCCL {old}: {} is the oldest that graphs hold", NcclVersion::OLDEST_IN_GRAPHS);
        facts.push(fact("transfers in graphs", value, Verdict::Lacks));
    }
    facts
}

/// The MPI that several ranks would use.
fn mpi() -> Finding {
    let (value, verdict) = match parallel::mpi_version() {
        Ok(version) => {
            // The packager's words follow.
            let words = version.split([',', '\n']).next().unwrap_or_default().split_whitespace();
            (words.collect::<Vec<_>>().join(" "), Verdict::Ok)
        }
        Err(error) => (format!("only one rank can train: {error}"), Verdict::Lacks),
    };
    Finding { about: "machine", name: "MPI".into(), value, verdict }
}

fn rates(device: &Device, group: Option<&Rc<dyn Communicator>>) -> Vec<Finding> {
    let peak = device.gpu().and_then(|gpu| peak_tflops(&gpu.name, Precision::Bf16));
    let measured = rates::measure(&mut Workbench::new(device)).and_then(|mut rates| {
        rates.extend(group.map_or_else(|| Ok(Vec::new()), |group| transfers::rates(device, group))?);
        Ok(rates)
    });
    match measured {
        Ok(rates) => rates
            .into_iter()
            .map(|rate| {
                let share = peak.filter(|_| rate.unit == Unit::Tflops).map(|peak| rate.value / peak * 100.0);
                let share = share.map_or(String::new(), |share| format!(", {share:.0} % of the data sheet's peak"));
                let digits = usize::from(rate.unit == Unit::Microseconds);
                let value = format!("{:.digits$} {}{share}", rate.value, rate.unit);
                Finding { about: "rate", name: rate.name, value, verdict: Verdict::Ok }
            })
            .collect(),
        Err(error) => {
            vec![Finding { about: "rate", name: "rates".into(), value: error.to_string(), verdict: Verdict::Fail }]
        }
    }
}
