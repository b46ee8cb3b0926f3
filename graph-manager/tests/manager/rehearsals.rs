//! A rehearsal: a step before the first real one, without transfers that wait for other ranks and without work that
//! must not be done twice.

use std::cell::Cell;
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Request, Tensor};
use graph_manager::{ManagerOptions, Result};

use crate::named::{Bench, Manager, StepContext, bench, copy};

/// The first of two ranks. It counts transfers, and they do nothing.
#[derive(Debug, Default)]
struct Counting {
    exchanges: Cell<usize>,
    sums: Cell<usize>,
}

struct Done;

impl Request for Done {
    fn wait(self: Box<Self>) -> device::Result<()> {
        Ok(())
    }
}

impl Communicator for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn start(&self, kind: CollectiveKind, _: &Tensor, _: &Tensor) -> device::Result<Box<dyn Request>> {
        let exchange = matches!(kind, CollectiveKind::Send { .. } | CollectiveKind::Receive { .. });
        let count = if exchange { &self.exchanges } else { &self.sums };
        count.set(count.get() + 1);
        Ok(Box::new(Done))
    }
}

/// A receive, a sum over ranks in a graph, a send in a graph, and an update that counts.
fn step(bench: &Bench, ranks: &Rc<Counting>, cx: &mut StepContext<'_>) -> Result<()> {
    let transfer = |kind, tensor| Collective::in_place(kind, ranks.clone(), tensor);
    cx.region("eager receive", (), |cx, ()| cx.run(transfer(CollectiveKind::Receive { from: 1 }, bench.y)))?;
    cx.region("sum", (), |cx, ()| cx.run(transfer(CollectiveKind::AllReduceSum, bench.z)))?;
    cx.region("send", (), |cx, ()| {
        cx.run(copy(bench.y, bench.z))?;
        cx.run(transfer(CollectiveKind::Send { to: 1 }, bench.z))
    })?;
    cx.region("update", (), |cx, ()| cx.region("inner", (), |cx, ()| cx.run(bench.count())))
}

#[test]
fn a_rehearsal_exchanges_nothing_with_other_stages_and_leaves_regions_out_with_those_inside() {
    if std::env::var("TEST_DEVICE").is_ok_and(|device| device == "cuda") {
        return; // The ranks are those of the host.
    }
    // A graph of a region that sends would lack its send. If a captured region contains one that is left out, nothing is
    // captured.
    let cases: [(&str, &[&str], f32, [&str; 3]); 3] = [
        ("update", &["sum"], 0.0, ["sum", "send", "update"]),
        ("inner", &[], 0.0, ["sum", "send", "update"]),
        ("nothing", &["sum", "update"], 2.0, ["sum", "update", "send"]),
    ];
    for (left_out, captured, counted, all) in cases {
        let (bench, ranks) = (bench(), Rc::new(Counting::default()));
        let mut manager = bench.manager(ManagerOptions::default());
        let counts = || (ranks.exchanges.get(), ranks.sums.get(), bench.value(bench.x));
        let body = &mut |cx: &mut StepContext<'_>| step(&bench, &ranks, cx);
        manager.rehearse("step", 1, body, |region| region == left_out).unwrap();
        let runs = if captured.is_empty() { 1 } else { 2 };
        assert_eq!(counts(), (0, runs, counted), "{left_out}");
        let names = |manager: &Manager| manager.report().graphs.into_iter().map(|graph| graph.name).collect::<Vec<_>>();
        assert_eq!(names(&manager), captured, "{left_out}");
        for number in 1..=4 {
            let (exchanges, sums, value) = counts();
            manager.step("step", 1, body).unwrap();
            assert_eq!(counts(), (exchanges + 2, sums + 1, value + 1.0), "step {number}");
        }
        assert_eq!(names(&manager), all, "{left_out}");
        let graphs = manager.report().graphs;
        let send = graphs.iter().find(|graph| graph.name == "send").unwrap();
        assert_eq!(send.nodes, ["send/copy", "send/send"]);
    }
}
