//! Code of the user in forward passes: graphs go around it, and no bit changes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use device::ops::Copy;
use engine::graph_options::{GraphModule, GraphOptions, Scope};
use engine::hooks::{Hook, HookCall, HookPlace, Hooks};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::regions::Mode;

use crate::models::{Kind, Layout, Run, all_settings, batch, tiny_gpt};

/// The values that a hook has read: the sum of the residual stream and of the tensor to be added to it.
type Seen = Rc<RefCell<Vec<(HookPlace, usize, f32)>>>;

/// Reads such sums.
fn reads(seen: &Seen) -> Hook {
    let seen = seen.clone();
    Hook::reads("it reads values", move |stream, call| {
        let mut sum = 0.0;
        for tensor in [Some(call.value.x), call.value.delta].into_iter().flatten() {
            sum += stream.read::<f32>(&tensor)?.wait()?.iter().sum::<f32>();
        }
        seen.borrow_mut().push((call.place, call.microbatch, sum));
        Ok(())
    })
}

/// Submits an operation and counts how often its code ran.
fn submits(runs: &Rc<Cell<usize>>) -> Hook {
    let runs = runs.clone();
    Hook::submits(move |cx, HookCall { value, .. }| {
        runs.set(runs.get() + 1);
        let output = cx.tensor("copy of the hook", value.x.shape, value.x.dtype)?;
        cx.run(Copy { input: value.x, output })
    })
}

const ATTENTION: HookPlace = HookPlace { layer: 2, module: Some(GraphModule::ATTENTION) };

/// After the embedding, after a block, and between the modules of a block.
const PLACES: [HookPlace; 3] = [HookPlace { layer: 0, module: None }, HookPlace { layer: 1, module: None }, ATTENTION];

fn hooked(run: Run, hook: &Hook, places: &[HookPlace]) -> Run {
    Run { hooks: Hooks::new(places.iter().map(|place| (*place, hook.clone()))), ..run }
}

/// The run with hooks: they read values, or if a graph contains several layers they submit operations.
pub fn with_hooks(run: Run) -> Run {
    match run.graphs.scope {
        Scope::PerLayer => hooked(run, &reads(&Seen::default()), &PLACES),
        Scope::PerChunk | Scope::FullIteration => hooked(run, &submits(&Rc::default()), &PLACES),
    }
}

#[test]
fn hooks_see_the_same_values_in_every_setting_and_change_no_bit() {
    let plain = Run { steps: 4, ..Run::new(Kind::Gpt, 2, GraphOptions::default()) };
    let (losses, weights) = plain.train();
    let mut seen = None;
    for (name, graphs) in all_settings().into_iter().filter(|(_, graphs)| graphs.scope == Scope::PerLayer) {
        let sums = Seen::default();
        let run = hooked(Run { steps: 4, ..Run::new(Kind::Gpt, 2, graphs) }, &reads(&sums), &PLACES);
        assert!(run.train() == (losses.clone(), weights.clone()), "{name}");
        let values = sums.take();
        assert_eq!(values.len(), PLACES.len() * 2 * 4, "{name}");
        let first: Vec<_> = values[..PLACES.len()].iter().map(|value| (value.0, value.1)).collect();
        assert_eq!(first, PLACES.map(|place| (place, 0)), "{name}");
        assert!(*seen.get_or_insert_with(|| values.clone()) == values, "{name}");
    }
}

#[test]
fn every_layout_runs_the_hooks_of_its_layers() {
    for layout in [Layout::new(1, 2, 1, 2), Layout { zero_bubble: true, ..Layout::new(2, 2, 1, 1) }] {
        let shape = || Some(GptShape { layers: 2, ..tiny_gpt(0.1, Precision::F32) });
        let run = || Run { steps: 3, shape: shape(), ..Run::new(Kind::Gpt, 2, GraphOptions::default()) };
        let plain = layout.on_ranks(run, |run| run.train());
        let with_hooks = layout.on_ranks(run, |run| {
            let seen = Seen::default();
            (hooked(run, &reads(&seen), &PLACES).train(), seen.take().len())
        });
        let (trained, calls): (Vec<_>, Vec<_>) = with_hooks.into_iter().unzip();
        assert!(trained == plain, "{layout:?}");
        assert!(calls.iter().all(|calls| *calls > 0), "{layout:?}: {calls:?}");
    }
}

#[test]
fn graphs_go_around_a_hook_that_reads_and_the_report_says_why() {
    let hook = reads(&Seen::default());
    let run = hooked(Run::new(Kind::Gpt, 2, GraphOptions::default()), &hook, &PLACES);
    let device = run.device();
    let mut stage = run.stage(&device);
    for step in 0..3 {
        let settings = run.settings(step);
        stage.train_step(settings, Some(&batch(run.kind, settings.first_sample, run.microbatches))).unwrap();
    }
    let report = stage.graphs().report();
    let has = |name: &str| report.graphs.iter().any(|graph| graph.name == name);
    // Layer 1 has one graph, layer 2 one for each module: the hook is between them.
    assert!(has("forward of layer 1, microbatch 0") && !has("forward of layer 2, microbatch 0"), "{report}");
    for module in ["attention", "mlp"] {
        assert!(has(&format!("{module} forward of layer 2, microbatch 0")), "{report}");
    }
    assert!(report.to_string().contains("hook (it reads values)"), "{report}");
    assert_eq!(report.graphs.len(), stage.graphs().expected_graphs(Mode::Train.into()), "{report}");
}

#[test]
fn a_hook_that_only_submits_is_part_of_graphs_and_its_code_is_called_once() {
    let losses = |run: &Run| run.train().0;
    let plain = losses(&Run { steps: 6, ..Run::new(Kind::Gpt, 1, GraphOptions::default()) });
    for scope in Scope::ALL {
        let runs = Rc::default();
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let run = hooked(Run { steps: 6, ..Run::new(Kind::Gpt, 1, graphs) }, &submits(&runs), &PLACES);
        assert_eq!(losses(&run), plain, "{scope:?}");
        // Recorded; not once more in six steps.
        assert_eq!(runs.get(), PLACES.len(), "{scope:?}");
    }
}

#[test]
fn a_hook_that_reads_is_refused_where_nothing_can_go_around_it() {
    let refused = |scope, recompute, places: &[HookPlace]| {
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let run = hooked(Run { recompute, ..Run::new(Kind::Gpt, 1, graphs) }, &reads(&Seen::default()), places);
        run.try_stage(&run.device()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    for scope in [Scope::PerChunk, Scope::FullIteration] {
        let larger = refused(scope, None, &PLACES);
        let words = format!("the hook of layer 0 cannot be captured, it reads values: under {scope:?} ");
        assert!(larger.contains(&words), "{larger}");
    }
    let blocks = refused(Scope::PerLayer, Some(1), &[ATTENTION]);
    assert!(blocks.contains("the hook of attention of layer 2 cannot be captured"), "{blocks}");
    assert!(blocks.contains("backward recomputes whole blocks"), "{blocks}");
    assert_eq!(refused(Scope::PerLayer, Some(1), &PLACES[..2]), "");
}

#[test]
fn a_hook_that_reads_and_says_that_it_does_not_is_refused_when_the_step_is_recorded() {
    for scope in Scope::ALL {
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let hook = Hook::submits(|cx, call| Ok(cx.compute().read::<f32>(&call.value.x)?.wait().map(drop)?));
        let run = hooked(Run::new(Kind::Gpt, 1, graphs), &hook, &PLACES[..2]);
        let text = run.stage(&run.device()).record(1, false).unwrap_err().to_string();
        let named = text.contains("layer 0") && text.contains("Readback::wait for `");
        assert!(named && text.contains("while a step is recorded. Rule: "), "{scope:?}: {text}");
    }
}
