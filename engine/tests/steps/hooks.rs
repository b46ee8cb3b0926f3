//! Code of the user in forward passes: graphs go around it, and no bit changes.

use std::cell::RefCell;
use std::rc::Rc;

use device::ops::Copy;
use engine::graph_options::{GraphModule, GraphOptions, Scope};
use engine::hooks::{ForwardHook, HookPlace, Hooks};
use engine::model::{GptShape, Hidden};
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step_policy::StepContext;
use graph_manager::Result;

use crate::models::{Kind, Layout, Run, all_settings, batch, tiny_gpt};

/// Reads the sum of the residual stream and what is to be added to it.
#[derive(Default)]
struct Reads(RefCell<Vec<(HookPlace, usize, f32)>>);

impl ForwardHook for Reads {
    fn capturable(&self) -> std::result::Result<(), &'static str> {
        Err("it reads values")
    }

    fn run(&self, cx: &mut StepContext<'_>, place: HookPlace, microbatch: usize, value: &Hidden) -> Result<()> {
        let mut sum = 0.0;
        for tensor in [Some(value.x), value.delta].into_iter().flatten() {
            sum += cx.compute().read::<f32>(&tensor)?.wait()?.iter().sum::<f32>();
        }
        self.0.borrow_mut().push((place, microbatch, sum));
        Ok(())
    }
}

/// Submits an operation and counts how often its code ran.
#[derive(Default)]
struct Submits(RefCell<usize>);

impl ForwardHook for Submits {
    fn capturable(&self) -> std::result::Result<(), &'static str> {
        Ok(())
    }

    fn run(&self, cx: &mut StepContext<'_>, _: HookPlace, _: usize, value: &Hidden) -> Result<()> {
        *self.0.borrow_mut() += 1;
        let output = cx.tensor("copy of the hook", value.x.shape, value.x.dtype)?;
        cx.run(Copy { input: value.x, output })
    }
}

const ATTENTION: HookPlace = HookPlace { layer: 2, module: Some(GraphModule::Attention) };

/// After the embedding, after a block, and between the modules of a block.
const PLACES: [HookPlace; 3] = [HookPlace { layer: 0, module: None }, HookPlace { layer: 1, module: None }, ATTENTION];

fn hooked(run: Run, hook: &Rc<impl ForwardHook + 'static>, places: &[HookPlace]) -> Run {
    let at = |place: &HookPlace| (*place, hook.clone() as Rc<dyn ForwardHook>);
    Run { hooks: Hooks::new(places.iter().map(at)), ..run }
}

/// The run with hooks: they read values, or where the whole step is one graph they submit operations.
pub fn with_hooks(run: Run) -> Run {
    match run.graphs.scope {
        Scope::PerLayer => hooked(run, &Rc::new(Reads::default()), &PLACES),
        Scope::FullIteration => hooked(run, &Rc::new(Submits::default()), &PLACES),
    }
}

#[test]
fn hooks_see_the_same_values_in_every_setting_and_change_no_bit() {
    let plain = Run { steps: 4, ..Run::new(Kind::Gpt, 2, GraphOptions::default()) };
    let (losses, weights) = plain.train();
    let mut seen = None;
    for (name, graphs) in all_settings().into_iter().filter(|(_, graphs)| graphs.scope == Scope::PerLayer) {
        let hook = Rc::new(Reads::default());
        let run = hooked(Run { steps: 4, ..Run::new(Kind::Gpt, 2, graphs) }, &hook, &PLACES);
        assert!(run.train() == (losses.clone(), weights.clone()), "{name}");
        let values = hook.0.take();
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
            let hook = Rc::new(Reads::default());
            (hooked(run, &hook, &PLACES).train(), hook.0.take().len())
        });
        let (trained, calls): (Vec<_>, Vec<_>) = with_hooks.into_iter().unzip();
        assert!(trained == plain, "{layout:?}");
        assert!(calls.iter().all(|calls| *calls > 0), "{layout:?}: {calls:?}");
    }
}

#[test]
fn graphs_go_around_a_hook_that_reads_and_the_report_says_why() {
    let hook = Rc::new(Reads::default());
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
    assert_eq!(report.graphs.len(), stage.graphs().expected_graphs(Mode::Train), "{report}");
}

#[test]
fn a_hook_that_only_submits_is_part_of_graphs_and_its_code_is_not_called_by_replays() {
    let losses = |run: &Run| run.train().0;
    let plain = losses(&Run { steps: 6, ..Run::new(Kind::Gpt, 1, GraphOptions::default()) });
    for scope in [Scope::PerLayer, Scope::FullIteration] {
        let hook = Rc::new(Submits::default());
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let run = hooked(Run { steps: 6, ..Run::new(Kind::Gpt, 1, graphs) }, &hook, &PLACES);
        assert_eq!(losses(&run), plain, "{scope:?}");
        // Recorded, run eagerly and captured; not once more in four replays.
        assert_eq!(hook.0.take(), 3 * PLACES.len(), "{scope:?}");
    }
}

#[test]
fn a_hook_that_reads_is_refused_where_nothing_can_go_around_it() {
    let refused = |scope, recompute, places: &[HookPlace]| {
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let run = hooked(Run { recompute, ..Run::new(Kind::Gpt, 1, graphs) }, &Rc::new(Reads::default()), places);
        run.try_stage(&run.device()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let whole = refused(Scope::FullIteration, None, &PLACES);
    assert!(whole.contains("the hook of layer 0 cannot be captured, it reads values: under FullIteration"), "{whole}");
    let blocks = refused(Scope::PerLayer, Some(1), &[ATTENTION]);
    assert!(blocks.contains("the hook of attention of layer 2 cannot be captured"), "{blocks}");
    assert!(blocks.contains("backward recomputes whole blocks"), "{blocks}");
    assert_eq!(refused(Scope::PerLayer, Some(1), &PLACES[..2]), "");
}

/// Says that it only submits, and reads.
struct ReadsInSecret;

impl ForwardHook for ReadsInSecret {
    fn capturable(&self) -> std::result::Result<(), &'static str> {
        Ok(())
    }

    fn run(&self, cx: &mut StepContext<'_>, _: HookPlace, _: usize, value: &Hidden) -> Result<()> {
        Ok(cx.compute().read::<f32>(&value.x)?.wait().map(drop)?)
    }
}

#[test]
fn a_hook_that_reads_and_says_that_it_does_not_is_refused_when_the_step_is_recorded() {
    for scope in [Scope::PerLayer, Scope::FullIteration] {
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        let run = hooked(Run::new(Kind::Gpt, 1, graphs), &Rc::new(ReadsInSecret), &PLACES[..2]);
        let text = run.stage(&run.device()).record(1, false).unwrap_err().to_string();
        let named = text.contains("layer 0") && text.contains("Readback::wait for `");
        assert!(named && text.contains("while a step is recorded. Rule: "), "{scope:?}: {text}");
    }
}
