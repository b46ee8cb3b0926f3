//! More shapes than a capture keeps graphs for.

use std::num::NonZeroUsize;
use std::process::Command;

use device::Tensor;
use graph_manager::{Capture, Forgotten, Layer};

use super::double::Double;
use crate::named::{Bench, bench};

const THREE: NonZeroUsize = NonZeroUsize::new(3).unwrap();

/// A capture that doubles, and tensors of four shapes.
fn doubling(bench: &Bench) -> (Capture<Tensor, Tensor>, [Tensor; 4]) {
    let double = Capture::new(&bench.pool, "double", 1, THREE, |cx, x: Tensor| Ok(Double.forward(cx, x)?.0));
    (double.unwrap(), [1, 2, 3, 4].map(|length| bench.tensor("x", &vec![0.0; length])))
}

/// Four shapes in turn have three places: each is forgotten before it is captured.
#[test]
fn shapes_that_are_forgotten_before_their_capture_are_in_the_report() {
    let bench = bench();
    let (mut double, inputs) = doubling(&bench);
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
    let bench = bench();
    let (mut double, inputs) = doubling(&bench);
    for input in inputs {
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
