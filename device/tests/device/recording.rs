//! While a step is recorded nothing runs. A call that needs work to have run, or that works at once, is refused then: it
//! would return zeros, or do its work at another time than in the step.

use device::ops::Fill;
use device::{DType, Error, Result, Snapshot, TraceEvent};

use crate::common::checked_bench;

/// A call, and how it is named.
type Case<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);

#[test]
fn calls_that_read_write_wait_or_allocate_at_once_are_refused_while_a_step_is_recorded() {
    let t = checked_bench();
    let (device, stream, event) = (&t.device, &t.stream, t.device.event());
    let mut areas = Vec::new();
    let x = device.allocate_tensor(&mut areas, "x", [4], DType::F32).unwrap();
    device.upload(&x, &[2.0_f32; 4]).unwrap();
    let mut before = Snapshot::default();
    device.snapshot(&mut before, [x]).unwrap();
    stream.record(&event).unwrap();
    let cases: Vec<Case<'_>> = vec![
        ("Device::synchronize", Box::new(|| device.synchronize())),
        ("Stream::synchronize of stream `ops`", Box::new(|| stream.synchronize())),
        ("Event::synchronize", Box::new(|| event.synchronize(device))),
        ("Device::upload of `x`", Box::new(|| device.upload(&x, &[5.0_f32; 4]))),
        ("Device::zero of `x`", Box::new(|| device.zero(&x))),
        ("Device::download of `x`", Box::new(|| device.download::<f32>(&x).map(drop))),
        ("Device::look at `x`", Box::new(|| device.look(&x, |_| panic!("it looked")))),
        ("Device::synchronize", Box::new(|| device.snapshot(&mut Snapshot::default(), [x]))),
        ("Device::synchronize", Box::new(|| device.restore(&before))),
        ("Device::allocate of `late`, 16 bytes,", Box::new(|| device.allocate("late", 16).map(drop))),
        (
            "Stream::begin_capture of stream `ops`",
            Box::new(|| {
                stream.begin_capture()?;
                stream.abandon_capture();
                Ok(())
            }),
        ),
        ("Device::staging", Box::new(|| device.staging([64]).map(drop))),
        ("Readback::wait for `x`, which was read", Box::new(|| stream.read::<f32>(&x)?.wait().map(drop))),
    ];
    let allocated = device.allocations();
    for dry in [false, true] {
        device.set_dry(dry);
        device.begin_trace();
        for (name, call) in &cases {
            let error = call().expect_err(name);
            assert!(matches!(error, Error::Recording { .. }), "{name}: {error}");
            let text = error.to_string();
            let rule = "Rule: a recording runs nothing, so values are not there yet, and what works at";
            assert!(text.starts_with(&format!("{name} while a step is recorded. {rule}")), "{text}");
        }
        device.end_trace();
    }
    device.set_dry(false);
    assert_eq!((t.get(&x), device.allocations()), (vec![2.0; 4], allocated));
    // Afterwards the same calls work.
    cases.iter().for_each(|(name, call)| {
        if !name.starts_with("Device::look") {
            call().expect(name)
        }
    });
}

#[test]
fn a_copy_in_stream_order_is_recorded_and_has_no_values_to_wait_for_then_or_later() {
    let t = checked_bench();
    let x = t.put(&[4], DType::F32, &[2.0; 4]);
    t.device.begin_trace();
    t.stream.submit(Fill { output: x, value: 3.0 }).unwrap();
    let read = t.stream.read::<f32>(&x).unwrap();
    t.stream.write(&x, &[4.0f32; 4]).unwrap();
    let trace = t.device.end_trace();
    let copies = |event: &&TraceEvent| matches!(event, TraceEvent::HostCopy { .. });
    assert_eq!((trace.len(), trace.iter().filter(copies).count()), (3, 2));
    let text = read.wait().unwrap_err().to_string();
    assert!(text.starts_with("Readback::wait for `input`, which was read while a step is recorded. Rule:"), "{text}");
    assert_eq!(t.get(&x), [2.0; 4]);
    // A copy that is not recorded has its values.
    assert_eq!(t.stream.read::<f32>(&x).unwrap().wait().unwrap(), [2.0; 4]);
}
