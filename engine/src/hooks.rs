//! The user's code in forward passes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display, Formatter};
use std::rc::Rc;

use device::Stream;
use graph_manager::Result;

use crate::graph_options::GraphModule;
use crate::model::Hidden;
use crate::regions::{Mode, Region};
use crate::step_policy::StepContext;

/// The place of a hook: after a layer, or after a module of a block.
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

/// The arguments of a hook: the output of a forward, and its place in the step.
#[derive(Clone, Copy, Debug)]
pub struct HookCall {
    /// The layer or module of the forward.
    pub place: HookPlace,
    /// The microbatch.
    pub microbatch: usize,
    /// The purpose of the step.
    pub mode: Mode,
    /// The output. A hook must not change it.
    pub value: Hidden,
}

type Submits = dyn Fn(&mut StepContext<'_>, &HookCall) -> Result<()>;
type Reads = dyn Fn(&Stream, &HookCall) -> Result<()>;

/// Code of the user that runs after forwards, for each microbatch.
#[derive(Clone)]
pub enum Hook {
    /// Submits operations. It is called when the step is recorded. Its operations become part of graphs.
    Submits(Rc<Submits>),
    /// Is called in each step, and may read values, wait, and do any work on the host. All work before it has been
    /// submitted to its stream. No graph contains it. [`Stage::let_hooks_read`](crate::step::Stage::let_hooks_read)
    /// turns these calls off and on.
    Reads {
        /// Why the hook cannot be part of a graph, as the report of graphs states the reason.
        reason: &'static str,
        /// The code.
        call: Rc<Reads>,
    },
}

impl Hook {
    /// A hook that submits operations.
    pub fn submits(call: impl Fn(&mut StepContext<'_>, &HookCall) -> Result<()> + 'static) -> Hook {
        Hook::Submits(Rc::new(call))
    }

    /// A hook that reads values, for this `reason` outside of graphs.
    pub fn reads(reason: &'static str, call: impl Fn(&Stream, &HookCall) -> Result<()> + 'static) -> Hook {
        Hook::Reads { reason, call: Rc::new(call) }
    }

    fn capturable(&self) -> std::result::Result<(), &'static str> {
        match self {
            Hook::Submits(_) => Ok(()),
            Hook::Reads { reason, .. } => Err(reason),
        }
    }
}

/// The hooks of a model, by place. The default has none.
#[derive(Clone, Default)]
pub struct Hooks {
    by_place: Rc<BTreeMap<HookPlace, Hook>>,
    /// Hooks that read are not called.
    paused: Rc<Cell<bool>>,
}

impl Hooks {
    /// Hooks at the given places of the model. Those of layers that another pipeline stage has do not run here. The
    /// head has no output.
    pub fn new(hooks: impl IntoIterator<Item = (HookPlace, Hook)>) -> Hooks {
        Hooks { by_place: Rc::new(hooks.into_iter().collect()), paused: Rc::default() }
    }

    /// Whether the hook at that place may become part of a graph, or the reason why not.
    pub(crate) fn capturable(&self, place: HookPlace) -> std::result::Result<(), &'static str> {
        self.by_place.get(&place).map_or(Ok(()), Hook::capturable)
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

/// Runs the hook of a layer, if the layer has one.
pub(crate) fn after_layer(cx: &mut StepContext<'_>, layer: usize, microbatch: usize, output: Hidden) -> Result<()> {
    run(cx, HookPlace { layer, module: None }, microbatch, output)
}

/// Runs the hook of a module, if the module has one. A backward that computes the module again does not.
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
    let (mode, paused) = (cx.mode().mode, hooks.paused.clone());
    let call_with = move |value| HookCall { place, microbatch, mode, value };
    cx.region(Region::Hook { place, microbatch }, output, |cx, output| match hook {
        Hook::Submits(submit) => submit(cx, &call_with(output)),
        Hook::Reads { call, .. } => cx.host_call("hook", output, (), move |stream, value, ()| match paused.get() {
            true => Ok(()),
            false => call(stream, &call_with(value)),
        }),
    })
}
