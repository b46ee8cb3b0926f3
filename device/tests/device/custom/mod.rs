//! Operations of a caller's own: they run, are recorded, captured, replayed and checked like the others, and reach only
//! the memory that they declare.

mod call;
mod mapped;

use std::rc::Rc;

use device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaOptions, CudaWork, GpuProperties, KernelArgument};
use device::ops::{Accesses, Copy, Custom, CustomOp, Fill, Launcher};
use device::{CheckError, DType, Device, Error, HostOptions, HostTensors, Result, Stream, Tensor, TraceEvent};

use crate::common::{Bench, Body, Probe, bench, numbers};

/// `y = a * x + y`.
#[derive(Debug)]
struct Axpy {
    a: f32,
    x: Tensor,
    y: Tensor,
}

impl CustomOp for Axpy {
    fn name(&self) -> &'static str {
        "axpy"
    }

    fn check(&self) -> Result<()> {
        let fits = self.x.dtype == DType::F32 && self.y.dtype == DType::F32 && self.x.shape == self.y.shape;
        let problem = || format!("`x` is {:?}, `y` is {:?}", self.x.shape, self.y.shape);
        if fits { Ok(()) } else { Err(Error::operation("axpy", problem())) }
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.x, self.y], [self.y])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        const CHUNK: usize = 64;
        let (x, y) = (tensors.read::<f32>(&self.x)?, tensors.write::<f32>(&self.y)?);
        tensors.pool().for_each_chunk(y, CHUNK, |chunk, y| {
            y.iter_mut().zip(&x[chunk * CHUNK..]).for_each(|(y, x)| *y += self.a * x);
        });
        Ok(())
    }
}

const N: usize = 1000;

fn tensors(t: &Bench) -> (Tensor, Tensor) {
    let (x, y) = (numbers(1, N, DType::F32), numbers(2, N, DType::F32));
    (t.put(&[N], DType::F32, &x), t.put(&[N], DType::F32, &y))
}

/// `y` after `count` times `y = 0.5 x + y`.
fn expected(count: usize) -> Vec<f64> {
    let (x, y) = (numbers(1, N, DType::F32), numbers(2, N, DType::F32));
    let once = |y: f32, x: f32| y + 0.5 * x;
    x.iter().zip(&y).map(|(&x, &y)| f64::from((0..count).fold(y as f32, |y, _| once(y, x as f32)))).collect()
}

#[test]
fn a_custom_operation_runs_eagerly_and_in_a_replayed_graph_to_the_same_bits_on_any_number_of_threads() {
    for threads in [1, 3] {
        let t = bench(threads);
        let (x, y) = tensors(&t);
        t.run(Axpy { a: 0.5, x, y });
        assert_eq!(t.get(&y), expected(1));
        t.stream.begin_capture().unwrap();
        t.run(Axpy { a: 0.5, x, y });
        t.run(Custom::new(Rc::new(Axpy { a: 0.5, x, y })));
        let graph = t.stream.end_capture("two").unwrap();
        assert_eq!(t.get(&y), expected(1), "a capture runs nothing");
        assert_eq!(graph.nodes()[0].label.as_ref(), "axpy");
        for launch in 1..4 {
            graph.launch(&t.stream).unwrap();
            assert_eq!(t.get(&y), expected(1 + 2 * launch));
        }
    }
}

#[test]
fn shuffled_replays_of_independent_custom_operations_give_the_same_bits() {
    let t = bench(2);
    let ((x, y), side) = (tensors(&t), t.device.stream("side"));
    let z = t.put(&[N], DType::F32, &numbers(2, N, DType::F32));
    let (fork, join) = (t.device.event(), t.device.event());
    t.stream.begin_capture().unwrap();
    t.stream.record(&fork).unwrap();
    side.wait(&fork).unwrap();
    side.submit(Axpy { a: 0.5, x, y: z }).unwrap();
    t.run(Axpy { a: 0.5, x, y });
    side.record(&join).unwrap();
    t.stream.wait(&join).unwrap();
    let graph = t.stream.end_capture("fork").unwrap();
    for launch in 1..20 {
        t.device.shuffle_replays(Some(launch as u64));
        graph.launch(&t.stream).unwrap();
        assert_eq!((t.get(&y), t.get(&z)), (expected(launch), expected(launch)));
    }
    assert!(t.device.reordered_launches() > 0);
}

#[test]
fn a_trace_has_the_buffers_of_a_custom_operation_and_runs_nothing() {
    let device = Device::host(HostOptions { dry: true, ..HostOptions::default() }).unwrap();
    let stream = device.stream("compute");
    let (x, y) = (device.virtual_tensor("x", [N], DType::F32), device.virtual_tensor("y", [N], DType::F32));
    device.begin_trace();
    stream.submit(Axpy { a: 0.5, x, y }).unwrap();
    let trace = device.end_trace();
    let [TraceEvent::Operation { stream: of, op, accesses, .. }] = &trace[..] else { panic!("{trace:?}") };
    assert_eq!((*of, op.name()), (stream.id(), "axpy"));
    assert_eq!((&accesses.reads[..], &accesses.writes[..]), (&[x, y][..], &[y][..]));
}

#[test]
fn shapes_that_a_custom_operation_refuses_are_refused_at_submission() {
    let t = bench(1);
    let (x, y) = tensors(&t);
    let message = t.stream.submit(Axpy { a: 0.5, x: x.narrow(0, 3), y }).unwrap_err().to_string();
    assert_eq!(message, "axpy: `x` is (3), `y` is (1000)");
}

fn hazard(result: Result<()>) -> CheckError {
    match result {
        Err(Error::Check(hazard)) => hazard,
        other => panic!("not a checker's finding: {other:?}"),
    }
}

#[test]
fn the_checker_finds_a_race_with_a_custom_operation_eagerly_and_in_a_graph() {
    let t = bench(1);
    let ((x, y), side) = (tensors(&t), t.device.stream("side"));
    side.submit(Fill { output: x, value: 1.0 }).unwrap();
    let found = hazard(t.stream.submit(Axpy { a: 0.5, x, y }));
    assert!(matches!(&found, CheckError::Race { first, second, .. } if first == "fill" && second == "axpy"), "{found}");

    t.device.synchronize().unwrap();
    let (fork, join) = (t.device.event(), t.device.event());
    t.stream.begin_capture().unwrap();
    t.stream.record(&fork).unwrap();
    side.wait(&fork).unwrap();
    side.submit(Axpy { a: 0.5, x, y }).unwrap();
    t.run(Copy { input: y, output: x });
    side.record(&join).unwrap();
    t.stream.wait(&join).unwrap();
    let found = hazard(t.stream.end_capture("racing").map(|_| ()));
    assert!(matches!(&found, CheckError::Race { .. }), "{found}");
}

#[test]
fn freed_memory_of_a_custom_operation_is_refused_before_it_runs() {
    let t = bench(1);
    let mut areas = Vec::new();
    let x = t.device.allocate_tensor(&mut areas, "x", [N], DType::F32).unwrap();
    let (_, y) = tensors(&t);
    t.device.upload(&x, &[0.0f32; N]).unwrap();
    drop(areas);
    assert!(matches!(hazard(t.stream.submit(Axpy { a: 0.5, x, y })), CheckError::Freed { .. }));
}

/// The refusal of a body that takes slices of `x`, declared to read, of `y`, declared to write, and of `z`, not
/// declared.
fn refusal(body: impl Fn(&mut HostTensors<'_>, Tensor, Tensor, Tensor) -> Result<()> + 'static) -> Option<String> {
    let t = bench(1);
    let ((x, y), z) = (tensors(&t), t.put(&[N], DType::F32, &numbers(3, N, DType::F32)));
    let body = Box::new(move |tensors: &mut HostTensors<'_>| body(tensors, x, y, z));
    let message = t.stream.submit(Probe { reads: vec![x], writes: vec![y], body }).err()?.to_string();
    assert!(message.starts_with("probe: took a tensor "), "{message}");
    Some(message)
}

#[test]
fn declared_tensors_and_parts_of_them_can_be_taken() {
    let refused = refusal(|tensors, x, y, _| {
        assert_eq!(tensors.read::<f32>(&x)?.len(), N);
        assert_eq!(tensors.read::<f32>(&x.narrow(5, 7))?.len(), 7);
        assert_eq!(tensors.write::<f32>(&y.narrow(0, 10))?.len(), 10);
        assert_eq!(tensors.write::<f32>(&y.narrow(10, 10))?.len(), 10);
        Ok(())
    });
    assert_eq!(refused, None);
}

#[test]
fn tensors_outside_of_the_declared_ones_are_refused_with_the_rule_and_the_fix() {
    let refused = [
        refusal(|tensors, _, _, z| tensors.read::<f32>(&z).map(|_| ())),
        refusal(|tensors, _, _, z| tensors.write::<f32>(&z).map(|_| ())),
        refusal(|tensors, x, _, _| tensors.write::<f32>(&x).map(|_| ())),
        refusal(|tensors, _, y, _| tensors.read::<f32>(&y).map(|_| ())),
        refusal(|tensors, x, _, _| tensors.read::<f32>(&Tensor { shape: [N + 1].into(), ..x }).map(|_| ())),
        refusal(|tensors, x, _, _| tensors.read::<f32>(&Tensor { address: x.address - 4, ..x }).map(|_| ())),
        // Ends beyond the last address, or in so many bytes that their number wraps around.
        refusal(|tensors, x, _, _| tensors.read::<f32>(&Tensor { address: u64::MAX - 3, ..x }).map(|_| ())),
        refusal(|tensors, x, _, _| tensors.read::<f32>(&Tensor { shape: [1 << 62].into(), ..x }).map(|_| ())),
    ];
    for message in refused {
        let message = message.expect("undeclared memory was given out");
        assert!(message.contains("Rule: an operation takes the tensors that CustomOp::accesses declares"), "{message}");
        assert!(message.ends_with("Fix: declare it"), "{message}");
    }
}

#[test]
fn a_declared_tensor_that_ends_beyond_the_last_address_is_refused_at_submission() {
    let t = bench(1);
    let (x, y) = tensors(&t);
    for wrong in [Tensor { address: u64::MAX - 3, ..x }, Tensor { shape: [1 << 62].into(), ..x }] {
        let probe = Probe { reads: vec![wrong], writes: vec![y], body: Box::new(|_| panic!("it ran")) };
        assert!(matches!(hazard(t.stream.submit(probe)), CheckError::Freed { .. }));
    }
}

#[test]
fn a_tensor_of_another_type_or_at_half_an_element_is_refused() {
    let other_type = refusal(|tensors, x, _, _| tensors.read::<i32>(&x).map(|_| ())).unwrap();
    assert!(other_type.contains("of f32 as i32"), "{other_type}");
    let half = |x: Tensor| Tensor { address: x.address + 2, shape: [1].into(), ..x };
    let misaligned = refusal(move |tensors, x, _, _| tensors.read::<f32>(&half(x)).map(|_| ())).unwrap();
    assert!(misaligned.contains("does not begin at a whole f32"), "{misaligned}");
}

#[test]
fn memory_that_is_taken_to_write_is_taken_once() {
    let t = bench(1);
    let (_, y) = tensors(&t);
    let submit = |body: Body| t.stream.submit(Probe { reads: vec![y], writes: vec![y], body });
    let twice: [Body; 3] = [
        Box::new(move |tensors| tensors.write::<f32>(&y).and(tensors.read::<f32>(&y.narrow(3, 1)).map(|_| ()))),
        Box::new(move |tensors| tensors.read::<f32>(&y.narrow(3, 1)).and(tensors.write::<f32>(&y).map(|_| ()))),
        Box::new(move |tensors| tensors.write::<f32>(&y).and(tensors.write::<f32>(&y.narrow(0, 1)).map(|_| ()))),
    ];
    for body in twice {
        let message = submit(body).unwrap_err().to_string();
        assert!(
            message.contains("Rule: memory that is written is taken once") && message.contains("Fix:"),
            "{message}"
        );
    }
    submit(Box::new(move |tensors| tensors.read::<f32>(&y).and(tensors.read::<f32>(&y)).map(|_| ()))).unwrap();
}

#[test]
fn a_custom_operation_that_fails_ends_the_submission_or_the_launch_with_its_error() {
    let t = bench(1);
    let fail = || Probe { reads: vec![], writes: vec![], body: Box::new(|_| Err(Error::operation("probe", "no"))) };
    assert_eq!(t.stream.submit(fail()).unwrap_err().to_string(), "probe: no");
    let graph = |stream: &Stream| {
        stream.begin_capture()?;
        stream.submit(fail())?;
        stream.end_capture("failing")
    };
    assert_eq!(graph(&t.stream).unwrap().launch(&t.stream).unwrap_err().to_string(), "probe: no");
}

/// [`Axpy`] with a CUDA side. It launches the kernel `function` of a module with `arguments`.
#[derive(Debug)]
struct CudaAxpy {
    host: Axpy,
    file: &'static str,
    code: CudaCode,
    function: &'static str,
    arguments: Vec<KernelArgument>,
}

const SOURCE: &str = include_str!("../../../examples/axpy.cu");

impl CudaAxpy {
    fn new(a: f32, x: Tensor, y: Tensor) -> CudaAxpy {
        let arguments = vec![a.into(), x.into(), y.into(), (y.elements() as u64).into()];
        CudaAxpy {
            host: Axpy { a, x, y },
            file: "axpy.cu",
            code: CudaCode::Source(SOURCE),
            function: "axpy",
            arguments,
        }
    }
}

impl CustomOp for CudaAxpy {
    fn name(&self) -> &'static str {
        "cuda_axpy"
    }

    fn check(&self) -> Result<()> {
        self.host.check()
    }

    fn accesses(&self) -> Accesses {
        self.host.accesses()
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        self.host.run_host(tensors)
    }

    fn cuda_work(&self, _gpu: &GpuProperties) -> Option<CudaWork<'_>> {
        let launch = CudaLaunch {
            kernel: CudaKernel { file: self.file, code: self.code, function: self.function },
            blocks: (self.host.y.elements().div_ceil(128) as u32, 1, 1),
            threads: (128, 1, 1),
            shared_bytes: 0,
            arguments: self.arguments.clone(),
        };
        Some(launch.into())
    }
}

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu_what_a_capture_cannot_record_is_refused_and_the_capture_goes_on() {
    let device = Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true }).unwrap();
    let (mut areas, stream) = (Vec::new(), device.stream("compute"));
    let [x, y] = ["x", "y"].map(|name| device.allocate_tensor(&mut areas, name, [N], DType::F32).unwrap());
    let reset = || {
        device.upload(&x, &[3.0f32; N]).unwrap();
        device.upload(&y, &[1.0f32; N]).unwrap();
    };
    let refused = |op: CudaAxpy, words: &str| {
        let message = stream.submit(op).unwrap_err().to_string();
        assert!(message.contains(words) && message.contains("Fix:"), "{message}");
    };
    reset();
    stream.begin_capture().unwrap();
    refused(CudaAxpy::new(2.0, x, y), "cuda_axpy: its kernel `axpy` is not loaded. Rule:");
    let message = stream.submit(Axpy { a: 2.0, x, y }).unwrap_err().to_string();
    assert!(message.starts_with("axpy: has no CUDA side") && message.contains("Fix:"), "{message}");
    stream.submit(Fill { output: y, value: 5.0 }).unwrap();
    stream.end_capture("fill").unwrap().launch(&stream).unwrap();
    assert_eq!(device.download::<f32>(&y).unwrap(), [5.0; N]);

    reset();
    stream.submit(CudaAxpy::new(2.0, x, y)).unwrap();
    refused(CudaAxpy { function: "axpyy", ..CudaAxpy::new(2.0, x, y) }, "axpy.cu has no kernel `axpyy`, only [axpy]");
    let too_few = vec![2.0f32.into(), x.into(), y.into()];
    refused(CudaAxpy { arguments: too_few, ..CudaAxpy::new(2.0, x, y) }, "declares arguments of [4, 8, 8, 8] bytes");
    stream.begin_capture().unwrap();
    stream.submit(CudaAxpy::new(2.0, x, y)).unwrap();
    let graph = stream.end_capture("axpy").unwrap();
    let before = device.counters();
    graph.launch(&stream).unwrap();
    assert_eq!(device.counters().allocations, before.allocations);
    assert_eq!(device.download::<f32>(&y).unwrap(), [13.0; N]);

    // A trace runs nothing.
    device.begin_trace();
    stream.submit(CudaAxpy::new(2.0, x, y)).unwrap();
    device.end_trace();
    assert_eq!(device.download::<f32>(&y).unwrap(), [13.0; N]);
}

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu_a_kernel_of_ptx_and_one_of_machine_code_run_and_those_of_another_architecture_are_refused() {
    let device = Device::cuda(CudaOptions { ordinal: 0, deterministic: true, tf32: false, check: true }).unwrap();
    let (gpu, mut areas, stream) = (device.gpu().unwrap(), Vec::new(), device.stream("compute"));
    let [x, y] = ["x", "y"].map(|name| device.allocate_tensor(&mut areas, name, [N], DType::F32).unwrap());
    device.upload(&x, &[3.0f32; N]).unwrap();
    let ptx = include_str!("../../../examples/axpy.ptx");
    let binary =
        |architecture: &str| CudaCode::Binary(device::cuda::compile("axpy.cu", SOURCE, architecture).unwrap().0.leak());
    let axpy = |file: &'static str, code: CudaCode| CudaAxpy { file, code, ..CudaAxpy::new(2.0, x, y) };
    for (file, code) in [("axpy.ptx", CudaCode::Ptx(ptx)), ("axpy.cubin", binary(&gpu.architecture()))] {
        device.upload(&y, &[1.0f32; N]).unwrap();
        stream.submit(axpy(file, code)).unwrap();
        stream.begin_capture().unwrap();
        stream.submit(axpy(file, code)).unwrap();
        stream.end_capture("axpy").unwrap().launch(&stream).unwrap();
        assert_eq!(device.download::<f32>(&y).unwrap(), [13.0; N], "{file}");
    }
    let newer = CudaCode::Ptx(ptx.replace(".target sm_80", ".target sm_999").leak());
    let other = binary(if gpu.capability.0 == 8 { "sm_90" } else { "sm_80" });
    for (file, code) in [("newer.ptx", newer), ("other.cubin", other)] {
        let message = stream.submit(axpy(file, code)).unwrap_err().to_string();
        for words in [file, gpu.name.as_str(), "Rule:", "Fix: compile"] {
            assert!(message.contains(words), "`{words}` is missing from: {message}");
        }
    }
}

#[test]
fn an_update_in_place_that_is_declared_as_a_write_alone_shows_under_the_checker() {
    for (checked, reads, shows) in [(true, false, true), (true, true, false), (false, false, false)] {
        let device = Device::host(HostOptions { check: checked, ..HostOptions::default() }).unwrap();
        let stream = device.stream("compute");
        let area = device.allocate("y", 16).unwrap();
        let y = area.tensor("y", 0, [4], DType::F32);
        let body: Body = Box::new(move |tensors| {
            tensors.write::<f32>(&y)?.iter_mut().for_each(|y| *y += 1.0);
            Ok(())
        });
        let op = Custom::new(Rc::new(Probe { reads: if reads { vec![y] } else { Vec::new() }, writes: vec![y], body }));
        for graphs in [false, true] {
            device.upload(&y, &[1.0_f32; 4]).unwrap();
            if graphs {
                stream.begin_capture().unwrap();
                stream.submit(op.clone()).unwrap();
                stream.end_capture("probe").unwrap().launch(&stream).unwrap();
            } else {
                stream.submit(op.clone()).unwrap();
            }
            let values = device.download::<f32>(&y).unwrap();
            assert_eq!(values.iter().all(|y| y.is_nan()), shows, "{values:?}");
            assert!(shows || values == [2.0; 4], "{values:?}");
        }
    }
}

#[test]
fn an_operation_without_a_side_for_the_host_is_refused_there() {
    let t = bench(1);
    let (x, y) = tensors(&t);
    let launcher = Launcher::new("on a gpu", |_| unreachable!("a host device has no stream of the driver"));
    let words = "on a gpu: has no side for the host, and its stream is a host device's. Rule: ";
    let refused = t.refusal(launcher.on([x], [y]));
    assert!(refused.starts_with(words) && refused.contains("Fix: "), "{refused}");
    // Two of one name are different work.
    let twin = Launcher::new("on a gpu", |_| Ok(()));
    let text = |launcher: &Launcher| format!("{:?}", launcher.on([x], [y]));
    assert_eq!(text(&launcher), text(&launcher.clone()));
    assert_ne!(text(&launcher), text(&twin));
}
