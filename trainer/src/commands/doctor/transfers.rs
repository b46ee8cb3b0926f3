//! Sums and gathers over all ranks: whether they are right, and how long they take.

use std::rc::Rc;

use device::cuda::StreamHandle;
use device::ops::{Collective, CollectiveKind, Copy};
use device::{Communicator, DType, Device, Op, Request, Result, Tensor, bf16};

use super::rates::{Rate, Unit, seconds};
use super::workbench::Workbench;
use super::{Finding, Verdict};

/// What makes transfers: a name for them, and a communicator.
type Path = (&'static str, Rc<dyn Communicator>);

/// The sizes of a transfer, in elements that a rank has of it: one word of each type, some that no number of blocks divides, and more
/// than the blocks of a kernel send in several rounds.
const ELEMENTS: [usize; 4] = [8, 1000, 264 * 1024, 5_000_008];

/// How often the graph of all transfers is replayed.
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
    let paths = paths(device, group);
    paths.iter().flat_map(|path| [DType::F32, DType::Bf16].map(|dtype| trial((path, dtype)))).collect()
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

/// What makes transfers on this device.
fn paths(device: &Device, group: &Rc<dyn Communicator>) -> Vec<Path> {
    let library = if device.gpu().is_some() { "by NCCL" } else { "by MPI" };
    let mut paths: Vec<Path> = vec![(library, Rc::new(Library(group.clone())))];
    paths.extend(group.peers().map(|_| ("by GPU memory", group.clone())));
    paths
}

/// A transfer that is tried: its operation, where its input is copied from, and what this rank has in the end.
struct Trial {
    op: Collective,
    source: Tensor,
    expected: Vec<f32>,
}

/// Makes all kinds and sizes of transfers in one graph, which is replayed.
fn all_are_right(device: &Device, group: &Rc<dyn Communicator>, dtype: DType) -> Result<bool> {
    let mut bench = Workbench::new(device);
    let mut trials = Vec::new();
    for elements in ELEMENTS {
        for kind in [CollectiveKind::AllReduceSum, CollectiveKind::AllGather, CollectiveKind::ReduceScatterSum] {
            trials.push(trial(&mut bench, kind, group, elements, dtype)?);
        }
    }
    let ops: Vec<Op> = trials
        .iter()
        .flat_map(|trial| [Copy { input: trial.source, output: trial.op.input }.into(), trial.op.clone().into()])
        .collect();
    for op in &ops {
        bench.run(op.clone())?;
    }
    bench.stream.begin_capture()?;
    for op in &ops {
        bench.stream.submit(op.clone())?;
    }
    let graph = bench.stream.end_capture("transfers")?;
    for _ in 0..REPLAYS {
        graph.launch(&bench.stream)?;
    }
    let mut right = true;
    for Trial { op, expected, .. } in &trials {
        right &= values(device, &op.output)? == *expected;
    }
    Ok(right)
}

/// A transfer of small whole numbers, whose sums are exact in every type.
fn trial(
    bench: &mut Workbench,
    kind: CollectiveKind,
    group: &Rc<dyn Communicator>,
    elements: usize,
    dtype: DType,
) -> Result<Trial> {
    let (rank, ranks) = (group.rank(), group.size());
    let value = |rank: usize, at: usize| ((at * 7 + at / 4096 + rank * 5) % 16) as f32;
    let sum = |at: usize| (0..ranks).map(|rank| value(rank, at)).sum::<f32>();
    let (inputs, expected): (usize, Vec<f32>) = match kind {
        CollectiveKind::AllGather => {
            (elements, (0..ranks * elements).map(|at| value(at / elements, at % elements)).collect())
        }
        CollectiveKind::ReduceScatterSum => {
            (ranks * elements, (rank * elements..(rank + 1) * elements).map(sum).collect())
        }
        _ => (elements, (0..elements).map(sum).collect()),
    };
    let own: Vec<f32> = (0..inputs).map(|at| value(rank, at)).collect();
    let (source, input) = (bench.output([inputs], dtype)?, bench.output([inputs], dtype)?);
    upload(&bench.device, &source, &own)?;
    let output = if kind == CollectiveKind::AllReduceSum { input } else { bench.output([expected.len()], dtype)? };
    Ok(Trial { op: Collective { kind, communicator: group.clone(), input, output }, source, expected })
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

/// A communicator whose transfers are all made by its library.
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
