//! The user's code in forward passes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display, Formatter};
use std::rc::Rc;

use graph_manager::Result;

use crate::graph_options::GraphModule;
use crate::model::Hidden;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// Where a hook runs: after a layer, or after a module of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookPlace {
    /// The layer, counted over the whole model as in [`Region`].
    pub layer: usize,
    /// The module of this layer; `None` for the whole layer.
    pub module: Option<GraphModule>,
}

impl Display for HookPlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.module {
            Some(module) => write!(f, "{module} of layer {}", self.layer),
            None => write!(f, "layer {}", self.layer),
        }
    }
}

/// Code of the user that runs in forward passes, for each microbatch.
pub trait ForwardHook {
    /// Whether it may become part of a graph, or the reason why not. A hook that only submits operations may. A hook that
    /// reads values or does other work on the host may not: a replay of a graph calls no code. One that reads all the same
    /// is refused when the step is recorded.
    ///
    /// # Errors
    /// The reason, as the report of graphs states it.
    fn capturable(&self) -> std::result::Result<(), &'static str>;

    /// Runs after the forward at `place`. It must not change `value`. Where it is not capturable, it does not run while a
    /// step is recorded, nor after [`Stage::let_hooks_read`](crate::step::Stage::let_hooks_read) said so.
    ///
    /// # Errors
    /// Errors of the device.
    fn run(&self, cx: &mut StepContext<'_>, place: HookPlace, microbatch: usize, value: &Hidden) -> Result<()>;
}

/// The hooks of a model, by place. The default has none.
#[derive(Clone, Default)]
pub struct Hooks {
    by_place: Rc<BTreeMap<HookPlace, Rc<dyn ForwardHook>>>,
    /// Hooks that read do not run.
    paused: Rc<Cell<bool>>,
}

impl Hooks {
    /// Hooks at these places. Those of layers that another pipeline stage has do not run here. The head has no output.
    pub fn new(hooks: impl IntoIterator<Item = (HookPlace, Rc<dyn ForwardHook>)>) -> Hooks {
        Hooks { by_place: Rc::new(hooks.into_iter().collect()), paused: Rc::default() }
    }

    /// Whether the hook at that place may become part of a graph; see [`ForwardHook::capturable`].
    pub(crate) fn capturable(&self, place: HookPlace) -> std::result::Result<(), &'static str> {
        self.by_place.get(&place).map_or(Ok(()), |hook| hook.capturable())
    }

    /// See [`Stage::let_hooks_read`](crate::step::Stage::let_hooks_read).
    pub(crate) fn let_read(&self, read: bool) {
        self.paused.set(!read);
    }

    /// The hooks that graphs have to leave out, with the reason.
    pub(crate) fn not_capturable(&self) -> impl Iterator<Item = (HookPlace, &'static str)> {
        self.by_place.iter().filter_map(|(place, hook)| Some((*place, hook.capturable().err()?)))
    }
}

impl Debug for Hooks {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.by_place.keys()).finish()
    }
}

/// Runs the hook of a layer, if it has one.
pub(crate) fn after_layer(cx: &mut StepContext<'_>, layer: usize, microbatch: usize, output: Hidden) -> Result<()> {
    run(cx, HookPlace { layer, module: None }, microbatch, output)
}

/// Runs the hook of a module, if it has one. A backward that computes the module again does not.
pub(crate) fn after_module(cx: &mut StepContext<'_>, module: GraphModule, output: Hidden) -> Result<()> {
    match cx.current_region() {
        Some(Region::Forward { layer, microbatch }) => {
            run(cx, HookPlace { layer, module: Some(module) }, microbatch, output)
        }
        _ => Ok(()),
    }
}

fn run(cx: &mut StepContext<'_>, place: HookPlace, microbatch: usize, output: Hidden) -> Result<()> {
    let hooks = cx.policy().hooks();
    let Some(hook) = hooks.by_place.get(&place).cloned() else { return Ok(()) };
    let rests = hook.capturable().is_err() && (cx.is_recording() || hooks.paused.get());
    cx.region(Region::Hook { place, microbatch }, output, |cx, output| match rests {
        true => Ok(()),
        false => hook.run(cx, place, microbatch, &output),
    })
}
