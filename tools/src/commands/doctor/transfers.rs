//! Sums and gathers over all ranks: whether they are right, and how long they take.

use std::rc::Rc;

use device::cuda::StreamHandle;
use device::ops::{Collective, CollectiveKind, Copy};
use device::{Communicator, DType, Device, Request, Result, Tensor, bf16};

use super::rates::{Rate, Unit, seconds};
use super::{Finding, Verdict};
use device::trials::Workbench;

/// A way to make transfers: its name, and a communicator.
type Path = (&'static str, Rc<dyn Communicator>);

/// The sizes of a transfer, in elements of a rank: one word of each type, and some that no number of blocks divides.
const ELEMENTS: [usize; 3] = [8, 1000, 264 * 1024];

/// On GPUs also more than the blocks of a kernel move in five rounds of f32.
const MANY_ELEMENTS: usize = 5_000_008;

/// Up to so many ranks sums are exact in bf16: the ranks' values, each below 16, add up to a number that bf16 has.
const EXACT_IN_BF16: usize = 16;

/// How often the graph of all transfers is replayed, each time with other values.
const REPLAYS: usize = 3;

/// One finding for each path and type.
pub(super) fn check(device: &Device, group: &Rc<dyn Communicator>) -> Vec<Finding> {
    let trial = |((by, group), dtype): (&Path, DType)| {
        let name = format!("sums and gathers over {} ranks {by}, {dtype}", group.size());
        let (value, verdict) = match all_are_right(device, group, dtype) {
            Ok(ok) => (if ok { "right" } else { "wrong" }.into(), Verdict::of(ok)),
            Err(error) => (error.to_string(), Verdict::Fail),
        };
        Finding { about: "ranks", name, value, verdict }
    };
    // Sums over more ranks than these may need rounding in bf16.
    let dtypes = if group.size() <= EXACT_IN_BF16 { &[DType::F32, DType::Bf16][..] } else { &[DType::F32] };
    let paths = paths(device, group);
    paths.iter().flat_map(|path| dtypes.iter().map(move |&dtype| trial((path, dtype)))).collect()
}

/// The time of transfers of a layer's size, by each path.
pub(super) fn rates(device: &Device, group: &Rc<dyn Communicator>) -> Result<Vec<Rate>> {
    let mut rates = Vec::new();
    for (by, group) in paths(device, group) {
        for (kind, mib) in [
            (CollectiveKind::AllReduceSum, 1),
            (CollectiveKind::AllReduceSum, 8),
            (CollectiveKind::AllReduceSum, 32),
            (CollectiveKind::ReduceScatterSum, 8),
            (CollectiveKind::AllGather, 8),
        ] {
            let mut bench = Workbench::new(device);
            let (whole, ranks) = ((mib << 20) / DType::Bf16.size(), group.size());
            let all = bench.scaled([whole / ranks * ranks], DType::Bf16, 0.0)?;
            let op = match kind {
                CollectiveKind::AllReduceSum => Collective::in_place(kind, group.clone(), all),
                _ => {
                    let part = bench.output([whole / ranks], DType::Bf16)?;
                    let (input, output) = if kind == CollectiveKind::AllGather { (part, all) } else { (all, part) };
                    Collective { kind, communicator: group.clone(), input, output }
                }
            };
            let value = seconds(&bench, &op.into())? * 1e6;
            rates.push(Rate { name: format!("{} of {mib} MiB {by}", kind.name()), value, unit: Unit::Microseconds });
        }
    }
    Ok(rates)
}

/// The ways to make transfers on this device.
fn paths(device: &Device, group: &Rc<dyn Communicator>) -> Vec<Path> {
    let library = if device.gpu().is_some() { "by NCCL" } else { "by MPI" };
    let mut paths: Vec<Path> = vec![(library, Rc::new(Library(group.clone())))];
    paths.extend(group.peers().map(|_| ("by GPU memory", group.clone())));
    paths
}

/// A transfer that is tried.
struct Trial {
    /// The trial's number. Its values follow from it.
    number: usize,
    op: Collective,
    /// The values that are copied to the transfer's input before.
    source: Tensor,
}

/// A kind of transfer, and whether the output lies in the place of the transfer's input.
const FORMS: [(CollectiveKind, bool); 8] = [
    (CollectiveKind::AllReduceSum, true),
    (CollectiveKind::AllReduceSum, false),
    (CollectiveKind::AllGather, true),
    (CollectiveKind::AllGather, false),
    (CollectiveKind::ReduceScatterSum, false),
    (CollectiveKind::Broadcast { from: 1 }, true),
    (CollectiveKind::Broadcast { from: 1 }, false),
    (CollectiveKind::ReduceSum { to: 1 }, true),
];

/// Makes all forms and sizes of transfers on two streams next to each other, eagerly and then in one graph. The graph
/// is replayed.
fn all_are_right(device: &Device, group: &Rc<dyn Communicator>, dtype: DType) -> Result<bool> {
    let mut bench = Workbench::new(device);
    let mut trials = Vec::new();
    for elements in ELEMENTS.into_iter().chain(device.gpu().map(|_| MANY_ELEMENTS)) {
        for form in FORMS {
            trials.push(trial(&mut bench, trials.len(), form, group, elements, dtype)?);
        }
    }
    let (aside, forked, joined) = (device.stream("doctor, aside"), device.event(), device.event());
    let submit = || -> Result<()> {
        bench.stream.record(&forked)?;
        aside.wait(&forked)?;
        for trial in &trials {
            let stream = if trial.number % 2 == 0 { &bench.stream } else { &aside };
            stream.submit(Copy { input: trial.source, output: trial.op.input })?;
            stream.submit(trial.op.clone())?;
        }
        aside.record(&joined)?;
        bench.stream.wait(&joined)
    };
    for trial in &trials {
        bench.prepare(&trial.op.clone().into())?;
    }
    fill(device, group, &trials, 0)?;
    submit()?;
    let mut right = are_right(device, group, &trials, 0)?;
    bench.stream.begin_capture()?;
    let submitted = submit();
    if submitted.is_err() {
        bench.stream.abandon_capture();
    }
    submitted?;
    let graph = bench.stream.end_capture("transfers")?;
    for run in 1..=REPLAYS {
        fill(device, group, &trials, run)?;
        graph.launch(&bench.stream)?;
        right &= are_right(device, group, &trials, run)?;
    }
    Ok(right)
}

fn trial(
    bench: &mut Workbench,
    number: usize,
    (kind, in_place): (CollectiveKind, bool),
    group: &Rc<dyn Communicator>,
    elements: usize,
    dtype: DType,
) -> Result<Trial> {
    let (rank, ranks) = (group.rank(), group.size());
    let (inputs, outputs) = match kind {
        CollectiveKind::AllGather => (elements, ranks * elements),
        CollectiveKind::ReduceScatterSum => (ranks * elements, elements),
        _ => (elements, elements),
    };
    let (source, output) = (bench.output([inputs], dtype)?, bench.output([outputs], dtype)?);
    let input = match (kind, in_place) {
        (CollectiveKind::Broadcast { from }, false) if from != rank => output,
        (_, false) => bench.output([inputs], dtype)?,
        (CollectiveKind::AllGather, true) => output.view(rank * elements, [elements]),
        (_, true) => output,
    };
    Ok(Trial { number, op: Collective { kind, communicator: group.clone(), input, output }, source })
}

/// A rank's value at a place of a trial's input: a small whole number, so that sums are exact in every type.
/// Neighbouring places, ranks, trials and runs have others.
fn value(run: usize, trial: usize, rank: usize, at: usize) -> f32 {
    // SplitMix64 (Steele et al., 2014).
    let mut mixed = (((run * 64 + trial) * 1024 + rank) as u64).wrapping_mul(1 << 40) + at as u64;
    mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 60) as f32
}

/// Sets the sources of the inputs, and all outputs to NaN.
fn fill(device: &Device, group: &Rc<dyn Communicator>, trials: &[Trial], run: usize) -> Result<()> {
    device.synchronize()?;
    for Trial { number, op, source } in trials {
        let own: Vec<f32> = (0..source.elements()).map(|at| value(run, *number, group.rank(), at)).collect();
        upload(device, source, &own)?;
        upload(device, &op.output, &vec![f32::NAN; op.output.elements()])?;
    }
    Ok(())
}

fn are_right(device: &Device, group: &Rc<dyn Communicator>, trials: &[Trial], run: usize) -> Result<bool> {
    device.synchronize()?;
    let (rank, ranks) = (group.rank(), group.size());
    let mut right = true;
    for Trial { number, op, .. } in trials {
        let (inputs, outputs) = (op.input.elements(), op.output.elements());
        let sum = |at: usize| (0..ranks).map(|rank| value(run, *number, rank, at)).sum::<f32>();
        let expected: Vec<f32> = match op.kind {
            CollectiveKind::AllGather => (0..outputs).map(|at| value(run, *number, at / inputs, at % inputs)).collect(),
            CollectiveKind::ReduceScatterSum => (rank * outputs..(rank + 1) * outputs).map(sum).collect(),
            CollectiveKind::Broadcast { from } => (0..outputs).map(|at| value(run, *number, from, at)).collect(),
            CollectiveKind::ReduceSum { to } if to != rank => {
                (0..outputs).map(|at| value(run, *number, rank, at)).collect()
            }
            _ => (0..outputs).map(sum).collect(),
        };
        right &= values(device, &op.output)? == expected;
    }
    Ok(right)
}

fn upload(device: &Device, tensor: &Tensor, values: &[f32]) -> Result<()> {
    match tensor.dtype {
        DType::Bf16 => device.upload(tensor, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
        _ => device.upload(tensor, values),
    }
}

fn values(device: &Device, tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(match tensor.dtype {
        DType::Bf16 => device.download::<bf16>(tensor)?.into_iter().map(bf16::to_f32).collect(),
        _ => device.download::<f32>(tensor)?,
    })
}

/// A communicator that makes all transfers by the library.
#[derive(Debug)]
struct Library(Rc<dyn Communicator>);

impl Communicator for Library {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn start(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor) -> Result<Box<dyn Request>> {
        self.0.start(kind, input, output)
    }

    fn enqueue(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor, stream: StreamHandle) -> Result<()> {
        self.0.enqueue(kind, input, output, stream)
    }
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn pieces_of_any_size_have_values_of_their_own() {
        for piece in [2048, 4096, 8192, 16384, 65536, 64 * 32768] {
            for (run, trial, rank, round) in [(0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 4)] {
                let differ = (0..256).filter(|&at| value(0, 0, 0, at) != value(run, trial, rank, at + round * piece));
                assert!(differ.count() > 128, "piece of {piece}, run {run}, trial {trial}, rank {rank}, round {round}");
            }
        }
    }
}
