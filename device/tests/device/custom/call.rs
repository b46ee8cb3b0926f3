//! Operations of a caller's own that submit their work to the stream themselves, on a GPU with calls of the driver. And
//! what the code of an operation may not do, on every device.
#![allow(unsafe_code)]

use std::error::Error as AnyError;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::{result, sys};
use device::cuda::{CudaTensors, CudaWork, GpuProperties};
use device::ops::{Accesses, CustomOp, Fill};
use device::{CaptureMode, CaptureRule, DType, Error, HostTensors, Result, Snapshot, Staging, Tensor};

use crate::common::{Bench, bench, checked_bench, cuda_bench, numbers};

const N: usize = 300;

/// What the code of an operation does besides its work.
type Also = fn(&CudaTensors<'_>) -> std::result::Result<(), Box<dyn AnyError>>;

/// `output = input`, by a call of the driver.
#[derive(Debug)]
struct Copies {
    input: Tensor,
    output: Tensor,
    also: Also,
}

impl Copies {
    fn new(input: Tensor, output: Tensor) -> Copies {
        Copies { input, output, also: |_| Ok(()) }
    }
}

fn stream_of(on: &CudaTensors<'_>) -> sys::CUstream {
    on.stream().0.cast()
}

impl CustomOp for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.input], [self.output])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        tensors.write::<f32>(&self.output)?.copy_from_slice(tensors.read::<f32>(&self.input)?);
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        Some(CudaWork::call(|on| {
            let (from, to) = (on.read(&self.input)?, on.write(&self.output)?);
            // SAFETY: both tensors are in memory of the GPU and as large as that.
            unsafe { result::memcpy_dtod_async(to, from, self.input.bytes(), stream_of(on)) }?;
            (self.also)(on)
        }))
    }
}

#[test]
fn a_call_runs_eagerly_and_in_a_replayed_graph_where_its_tensors_are_placed() {
    let t = checked_bench();
    let values = numbers(1, N, DType::F32);
    let (input, output) = (t.put(&[N], DType::F32, &values), t.empty(&[N], DType::F32));
    t.run(Copies::new(input, output));
    assert_eq!(t.get(&output), values);

    let (moved, to) = (t.put(&[N], DType::F32, &numbers(2, N, DType::F32)), t.empty(&[N], DType::F32));
    let op = device::Op::from(Copies::new(input, output));
    t.stream.begin_capture().unwrap();
    t.run(op.map(|tensor| if tensor == input { moved } else { to }));
    let graph = t.stream.end_capture("copy").unwrap();
    t.run(Fill { output: moved, value: 7.0 });
    graph.launch(&t.stream).unwrap();
    assert_eq!(t.get(&to), [7.0; N], "the graph reads when it is launched");
    assert_eq!(t.get(&output), values, "the place that it was declared with is left alone");
}

#[test]
fn a_call_is_not_made_while_a_step_is_recorded() {
    let t = checked_bench();
    let (input, output) = (t.put(&[N], DType::F32, &[1.0; N]), t.put(&[N], DType::F32, &[2.0; N]));
    t.prepare(Copies { also: |_| panic!("it was called"), ..Copies::new(input, output) });
    assert_eq!(t.get(&output), [2.0; N]);
}

/// Something that a capture cannot record, whose error the code of the operation does not pass on, or does.
const MISTAKES: [(&str, Also); 5] = [
    ("made the capture invalid", |on| {
        // SAFETY: a stream that lives.
        let _ = unsafe { result::stream::synchronize(stream_of(on)) };
        Ok(())
    }),
    ("made the capture invalid", |on| {
        // SAFETY: as above.
        unsafe { result::stream::synchronize(stream_of(on)) }?;
        Ok(())
    }),
    ("made the capture invalid", |_| {
        // SAFETY: nothing is allocated: the driver refuses it.
        let _ = unsafe { result::malloc_sync(256) };
        Ok(())
    }),
    ("cuMemAllocAsync", |on| {
        // SAFETY: the memory is used by nobody.
        unsafe { result::malloc_async(stream_of(on), 256) }?;
        Ok(())
    }),
    ("ended the capture", |on| {
        // SAFETY: the graph is left to the process.
        unsafe { result::stream::end_capture(stream_of(on)) }?;
        Ok(())
    }),
];

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu_a_call_that_does_what_a_capture_cannot_record_is_named_and_later_calls_repeat_it() {
    let t = cuda_bench();
    let (input, output) = (t.put(&[N], DType::F32, &[1.0; N]), t.put(&[N], DType::F32, &[2.0; N]));
    for (at, (words, also)) in MISTAKES.into_iter().enumerate() {
        t.stream.begin_capture().unwrap();
        t.run(Fill { output, value: 3.0 });
        let error = t.stream.submit(Copies { also, ..Copies::new(input, output) }).expect_err(words);
        assert!(matches!(error, Error::Capture { rule: CaptureRule::Call, .. }), "{at}: {error}");
        let first = error.to_string();
        for words in ["the call of `copies`", words, "Rule: a call in a capture only adds", "Fix:"] {
            assert!(first.contains(words), "{at}: `{words}` is missing from: {first}");
        }
        let event = t.device.event();
        let later = [t.stream.submit(Fill { output, value: 3.0 }), t.stream.record(&event)];
        let ended = t.stream.end_capture("spoiled").map(drop);
        for error in later.into_iter().chain([ended]).map(Result::unwrap_err) {
            let text = error.to_string();
            assert!(text.contains("901") && text.contains("the call of `copies`"), "{at}: {text}");
        }
        // The stream works on.
        t.run(Copies::new(input, output));
        assert_eq!(t.get(&output), [1.0; N], "{at}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu_the_mode_of_a_capture_decides_about_calls_of_other_code() {
    let t = cuda_bench();
    let (input, output) = (t.put(&[N], DType::F32, &[1.0; N]), t.put(&[N], DType::F32, &[2.0; N]));
    let allocates: Also = |_| {
        // SAFETY: the memory is left to the process.
        unsafe { result::malloc_sync(256) }?;
        Ok(())
    };
    for (mode, refused) in
        [(CaptureMode::Relaxed, false), (CaptureMode::ThreadLocal, true), (CaptureMode::Global, true)]
    {
        t.stream.begin_capture_in(mode).unwrap();
        let submitted = t.stream.submit(Copies { also: allocates, ..Copies::new(input, output) });
        assert_eq!(submitted.is_err(), refused, "{mode:?}: {submitted:?}");
        assert_eq!(t.stream.end_capture("allocates").is_err(), refused, "{mode:?}");
    }
}

/// An operation of the host that runs `code`.
struct Uses<F>(F);

impl<F> std::fmt::Debug for Uses<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Uses")
    }
}

impl<F: Fn() -> Result<()>> CustomOp for Uses<F> {
    fn name(&self) -> &'static str {
        "uses"
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([], [])
    }

    fn run_host(&self, _: &mut HostTensors<'_>) -> Result<()> {
        (self.0)()
    }
}

type Call = Box<dyn Fn() -> Result<()>>;

/// Each call of a device that returns errors, made by the code of an operation, by its name.
fn calls(t: &Bench, x: Tensor) -> Vec<(&'static str, Call)> {
    let (device, stream, event) = (t.device.clone(), t.stream.clone(), t.device.event());
    stream.begin_capture().unwrap();
    stream.submit(Fill { output: x, value: 1.0 }).unwrap();
    let graph = stream.end_capture("inner").unwrap();
    macro_rules! call {
        ($name:literal, |$device:ident, $stream:ident, $event:ident| $code:expr) => {{
            let ($device, $stream, $event) = (device.clone(), stream.clone(), event.clone());
            let _ = (&$device, &$stream, &$event);
            ($name, Box::new(move || $code) as Call)
        }};
    }
    vec![
        call!("Device::allocate of `late`, 16 bytes,", |device, s, e| device.allocate("late", 16).map(drop)),
        call!("Device::download of a tensor (4) of f32", |device, s, e| device.download::<f32>(&x).map(drop)),
        call!("Device::upload of a tensor (4) of f32", |device, s, e| device.upload(&x, &[5.0_f32; 4])),
        call!("Device::zero of a tensor (4) of f32", |device, s, e| device.zero(&x)),
        call!("Device::synchronize", |device, s, e| device.synchronize()),
        call!("Device::synchronize", |device, s, e| device.snapshot(&mut Snapshot::default(), [x])),
        call!("Device::synchronize", |device, s, e| device.restore(&Snapshot::default())),
        call!("Device::look at 16 bytes", |device, s, e| device.look(&x, |_| panic!("it looked"))),
        call!("Device::staging", |device, s, e| device.staging([64]).map(drop)),
        call!("Device::prepare_timeline", |device, s, e| device.prepare_timeline()),
        call!("Stream::synchronize", |d, stream, e| stream.synchronize()),
        call!("Stream::submit of `fill`", |d, stream, e| stream.submit(Fill { output: x, value: 5.0 })),
        call!("Stream::write of a tensor (4)", |d, stream, e| stream.write(&x, &[5.0_f32; 4])),
        call!("Stream::read of a tensor (4)", |d, stream, e| stream.read::<f32>(&x).map(drop)),
        call!("Stream::copy_out", |d, stream, e| stream.copy_out(&[x], &Staging::default()).map(drop)),
        call!("Stream::record", |d, stream, event| stream.record(&event)),
        call!("Stream::wait", |d, stream, event| stream.wait(&event)),
        call!("Event::synchronize", |device, s, event| event.synchronize(&device)),
        call!("Stream::begin_capture", |d, stream, e| stream.begin_capture()),
        call!("Stream::end_capture", |d, stream, e| stream.end_capture("inner").map(drop)),
        call!("Graph::launch of `inner`", |d, stream, e| graph.launch(&stream)),
    ]
}

#[test]
fn the_code_of_an_operation_that_uses_its_device_is_refused_with_the_names_of_both() {
    for in_graph in [false, true] {
        let t = bench(1);
        let x = t.put(&[4], DType::F32, &[2.0; 4]);
        for (name, call) in calls(&t, x) {
            let op = Uses(call);
            let error = match in_graph {
                false => t.stream.submit(op).expect_err(name),
                true => {
                    t.stream.begin_capture().unwrap();
                    t.run(op);
                    t.stream.end_capture("uses").unwrap().launch(&t.stream).expect_err(name)
                }
            };
            assert!(matches!(&error, Error::Within { op: "uses", call } if call == name), "{name}: {error}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("uses: {name} was made while it ran. Rule:")), "{text}");
            assert!(text.contains("Fix:"), "{text}");
        }
        assert_eq!(t.get(&x), [2.0; 4], "nothing was done");
    }
}

#[test]
fn a_call_without_errors_of_its_own_panics_with_the_operation_s_name_and_the_device_works_on() {
    let t = bench(1);
    let x = t.put(&[4], DType::F32, &[2.0; 4]);
    let device = t.device.clone();
    let op = Uses(move || {
        device.set_scope("inside");
        Ok(())
    });
    let panic = catch_unwind(AssertUnwindSafe(|| t.stream.submit(op))).expect_err("it must panic");
    let text = panic.downcast_ref::<String>().expect("a panic with text");
    assert!(text.starts_with("uses: a call of its device was made while it ran. Rule:"), "{text}");
    t.run(Fill { output: x, value: 3.0 });
    assert_eq!(t.get(&x), [3.0; 4]);
}

#[test]
fn an_area_that_the_code_of_an_operation_drops_keeps_its_memory() {
    let t = bench(1);
    let area = std::cell::RefCell::new(Some(t.device.allocate("own", 256).unwrap()));
    let before = t.device.allocated_bytes();
    t.run(Uses(move || {
        drop(area.take());
        Ok(())
    }));
    assert_eq!(t.device.allocated_bytes(), before);
}

#[test]
fn another_device_may_be_used_also_for_operations_of_a_caller_s_own() {
    let (t, other) = (bench(1), bench(1));
    let x = other.put(&[4], DType::F32, &[2.0; 4]);
    let device = other.device.clone();
    let (stream, own) = (other.stream.clone(), t.device.clone());
    let refused = t.stream.submit(Uses(move || {
        stream.submit(Uses(|| Ok(())))?;
        assert_eq!(device.download::<f32>(&x)?, [2.0; 4]);
        own.synchronize()
    }));
    assert!(matches!(refused, Err(Error::Within { op: "uses", .. })), "it still runs: {refused:?}");
}
