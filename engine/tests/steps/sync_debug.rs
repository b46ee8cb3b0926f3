//! A steady step neither waits nor allocates. A call that does is named with its region.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use device::ops::{Rule, RuleState};
use device::{Stream, SyncDebug};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::optimizer::{ParamGroup, ParamUpdate, StepControl, Update, UpdateRule};
use engine::params::Params;
use engine::precision::Precision;
use engine::step::Stage;

use crate::models::{Kind, Layout, Run, all_settings, batch, tiny_gpt};

/// Trains some steps, and then as many that must neither wait nor allocate. Returns the last losses.
fn steady(run: &Run) -> Vec<f64> {
    let device = run.device();
    let (_, mut stage) = run.train_on(&device);
    let losses = (run.steps..2 * run.steps).map(|step| {
        let (settings, stage): (_, &mut Stage) = (run.settings(step), &mut stage);
        let batch = stage.needs_batch().then(|| batch(run.kind, settings.first_sample, run.microbatches));
        device.set_sync_debug(SyncDebug::Error);
        let pending = stage.train_step(settings, batch.as_ref());
        device.set_sync_debug(SyncDebug::Off);
        pending.unwrap().wait().unwrap().loss
    });
    losses.collect()
}

#[test]
fn steady_steps_neither_wait_nor_allocate_in_any_setting_or_layout() {
    for (at, (name, graphs)) in all_settings().into_iter().enumerate() {
        let kind = [Kind::Gpt, Kind::Llama, Kind::Mlp][at % 3];
        let run = Run { steps: 3, check: false, ..Run::new(kind, 2, graphs) };
        assert!(steady(&run).iter().all(|loss| loss.is_finite()), "{name}");
    }
    for scope in Scope::ALL {
        for layout in [Layout::new(2, 2, 1, 2), Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 1) }] {
            let graphs = GraphOptions { scope, ..GraphOptions::default() };
            let shape = Some(GptShape { layers: 2, ..tiny_gpt(0.1, Precision::F32) });
            let run = || {
                let graphs = graphs.clone();
                Run { steps: 3, shape: shape.clone(), check: false, watched: true, ..Run::new(Kind::Gpt, 4, graphs) }
            };
            layout.on_ranks(run, |run| assert!(steady(&run)[2].is_finite()));
        }
    }
}

/// SGD, and beside it some work on the host.
struct Beside(fn(&Stream) -> device::Result<()>);

impl Debug for Beside {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Beside")
    }
}

impl UpdateRule for Beside {
    fn state(&self) -> &'static [RuleState] {
        &[]
    }

    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, params: &Params) -> Box<Update> {
        let (sgd, beside) = (Rule::Sgd { momentum: 0.0 }.update(updates, control, params), self.0);
        Box::new(move |cx| {
            cx.host_call("beside", (), (), move |stream, (), ()| Ok(beside(stream)?))?;
            sgd(cx)
        })
    }
}

/// The error of a step that does `beside` in its optimizer.
fn error_of(beside: fn(&Stream) -> device::Result<()>, graphs: GraphOptions) -> String {
    let groups = vec![ParamGroup::new(|_| true, Arc::new(Beside(beside)), 0.0)];
    let run = Run { steps: 3, check: false, groups: Some(groups), ..Run::new(Kind::Mlp, 2, graphs) };
    let device = run.device();
    let mut stage = run.stage(&device);
    for step in 0..run.steps {
        let settings = run.settings(step);
        let batch = batch(run.kind, settings.first_sample, run.microbatches);
        // On a GPU the second step still allocates: page-locked memory for copies.
        device.set_sync_debug(if step > 1 { SyncDebug::Error } else { SyncDebug::Off });
        if let Err(error) = stage.train_step(settings, Some(&batch)) {
            return error.to_string();
        }
    }
    panic!("nothing was found");
}

#[test]
fn a_planted_wait_and_a_planted_allocation_are_named_with_their_region() {
    let waits: fn(&Stream) -> device::Result<()> = |stream| stream.synchronize();
    let allocates: fn(&Stream) -> device::Result<()> = |stream| stream.device().allocate("late", 64).map(drop);
    let eager = GraphOptions { capture_optimizer: false, ..GraphOptions::default() };
    let off = GraphOptions { enable: false, capture_optimizer: false, ..GraphOptions::default() };
    for graphs in [eager, off] {
        let text = error_of(waits, graphs.clone());
        let words = "optimizer: Stream::synchronize of stream `compute` in `optimizer` makes the host wait. Rule: a steady step \
                     neither waits for the device nor allocates. Fix: do it before the first step, or after the step";
        assert_eq!(text, words);
        let text = error_of(allocates, graphs);
        assert!(
            text.starts_with("optimizer: Device::allocate of `late`, 64 bytes, in `optimizer` allocates memory"),
            "{text}"
        );
    }
    // With an optimizer that becomes a graph.
    let text = error_of(waits, GraphOptions::default());
    assert!(text.starts_with("optimizer: it becomes a graph, and calls the host (`beside`)"), "{text}");
}
