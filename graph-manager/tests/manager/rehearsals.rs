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
    for leaves_out in [true, false] {
        let (bench, ranks) = (bench(), Rc::new(Counting::default()));
        let mut manager = bench.manager(ManagerOptions::default());
        let counts = || (ranks.exchanges.get(), ranks.sums.get(), bench.value(bench.x));
        let body = &mut |cx: &mut StepContext<'_>| step(&bench, &ranks, cx);
        manager.rehearse("step", 1, body, |region| leaves_out && region == "update").unwrap();
        // If a captured region has others inside, nothing is captured. A graph of a region that sends would lack its
        // send.
        let (runs, captured) = if leaves_out { (2, &["sum"][..]) } else { (1, &[][..]) };
        assert_eq!(counts(), (0, runs, if leaves_out { 0.0 } else { 1.0 }));
        let names = |manager: &Manager| manager.report().graphs.into_iter().map(|graph| graph.name).collect::<Vec<_>>();
        assert_eq!(names(&manager), captured);
        for number in 1..=4 {
            let (exchanges, sums, value) = counts();
            manager.step("step", 1, body).unwrap();
            assert_eq!(counts(), (exchanges + 2, sums + 1, value + 1.0), "step {number}");
        }
        assert_eq!(names(&manager), ["sum", "send", "update"]);
        let graphs = manager.report().graphs;
        assert_eq!(graphs[1].nodes, ["send/copy", "send/send"]);
    }
}
