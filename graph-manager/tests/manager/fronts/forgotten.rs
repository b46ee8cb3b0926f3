//! More shapes than a capture keeps graphs for.

use std::num::NonZeroUsize;
use std::process::Command;

use device::{Area, DType, Device, Tensor, ops::Add};
use graph_manager::{Capture, Forgotten, Pool};

use crate::toy::checked_device;

const THREE: NonZeroUsize = NonZeroUsize::new(3).unwrap();

fn doubling(device: &Device) -> Capture<Tensor, Tensor> {
    Capture::new(&Pool::new(device.stream("compute")), "double", 1, THREE, |cx, x: Tensor| {
        let output = cx.tensor("output", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: x, output })?;
        Ok(output)
    })
    .unwrap()
}

fn shapes(device: &Device, areas: &mut Vec<Area>) -> Vec<Tensor> {
    let tensors = (1..=4).map(|length| {
        let tensor = device.allocate_tensor(areas, "x", [length], DType::F32).unwrap();
        device.zero(&tensor).unwrap();
        tensor
    });
    tensors.collect()
}

/// Four shapes in turn have three places: each is forgotten before it is captured.
#[test]
fn shapes_that_are_forgotten_before_their_capture_are_in_the_report() {
    let (device, mut areas) = (checked_device(), Vec::new());
    let mut double = doubling(&device);
    let inputs = shapes(&device, &mut areas);
    for input in inputs.iter().cycle().take(400) {
        double.run(*input).unwrap();
    }
    let report = double.report();
    assert_eq!((report.graphs.len(), report.forgotten), (0, Forgotten { plans: 397, without_graph: 397 }));
    let words = "a kind of step was forgotten 397 times because there are more than plan_limit, 397 of them before its graphs \
                 were captured: it runs eagerly, and is recorded anew when it comes back. Fix: raise plan_limit (of a \
                 Capture: its `shapes`), use fewer shapes, or run each shape several times in a row";
    assert!(report.to_string().contains(words), "{report}");
    assert_eq!(report.steps.iter().map(|step| &*step.mode).max(), Some("(4) f32"), "modes are shapes");
}

#[test]
fn shapes_that_had_their_graphs_are_forgotten_without_a_complaint() {
    let (device, mut areas) = (checked_device(), Vec::new());
    let mut double = doubling(&device);
    for input in shapes(&device, &mut areas) {
        (0..3).for_each(|_| _ = double.run(input).unwrap());
    }
    let report = double.report();
    assert_eq!(report.forgotten, Forgotten { plans: 1, without_graph: 0 });
    assert!(!report.to_string().contains("forgotten"), "{report}");
}

/// The program is this test binary: it runs the test above in a process without a subscriber of tracing.
#[test]
fn a_program_without_a_subscriber_reads_it_once_on_stderr() {
    let test = "fronts::forgotten::shapes_that_are_forgotten_before_their_capture_are_in_the_report";
    let output =
        Command::new(std::env::current_exe().unwrap()).args(["--exact", "--nocapture", test]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let times = said.matches("graph-manager: a kind of step was forgotten 4 times").count();
    assert!(output.status.success() && times == 1 && said.matches("was forgotten").count() == 1, "{said}");
}
