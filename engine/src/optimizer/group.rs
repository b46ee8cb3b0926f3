//! Parameter groups, and the rules that update groups.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use device::Tensor;
use device::ops::RuleState;
use graph_manager::Result;
use parallel::Ranks;

use crate::params::{ParamSpec, Params};
use crate::step_policy::StepContext;

/// Parameters that are updated alike. Each parameter belongs to the first group of a list that takes it.
#[derive(Clone, Debug)]
pub struct ParamGroup {
    /// Whether the group takes a parameter whose name `names` has.
    pub takes: fn(&ParamSpec) -> bool,
    /// The names of parameters that the group may take; `None`: any.
    pub names: Option<Arc<BTreeSet<String>>>,
    /// The update rule of the group's parameters. Groups that share one `Arc` are updated by one launch.
    pub rule: Arc<dyn UpdateRule>,
    /// Weight decay of the group's parameters.
    pub weight_decay: f32,
    /// The factor of the learning rate for the group's parameters. It is a constant: graphs have it.
    pub lr_multiplier: f32,
}

impl ParamGroup {
    /// A group of parameters of any name, with a learning rate factor of 1.
    pub fn new(takes: fn(&ParamSpec) -> bool, rule: Arc<dyn UpdateRule>, weight_decay: f32) -> ParamGroup {
        ParamGroup { takes, names: None, rule, weight_decay, lr_multiplier: 1.0 }
    }

    /// Whether the group takes a parameter.
    pub fn has(&self, spec: &ParamSpec) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains(&spec.name)) && (self.takes)(spec)
    }

    /// The two usual groups of one rule: matrices decay, biases and the gains of norms do not.
    pub fn decay_matrices(rule: impl UpdateRule + 'static, weight_decay: f32) -> Vec<ParamGroup> {
        ParamGroup::decay_matrices_by(Arc::new(rule), weight_decay)
    }

    /// As [`ParamGroup::decay_matrices`], of a rule that others may share.
    pub fn decay_matrices_by(rule: Arc<dyn UpdateRule>, weight_decay: f32) -> Vec<ParamGroup> {
        let matrices = ParamGroup::new(ParamSpec::is_matrix, rule.clone(), weight_decay);
        vec![matrices, ParamGroup::new(|_| true, rule, 0.0)]
    }
}

/// How parameters are updated from gradients: by a rule of the device ([`Rule`](device::ops::Rule)), or by several
/// operations ([`Muon`](super::Muon)). The learning rate comes with each step, so it is not part of a rule.
pub trait UpdateRule: Debug + Send + Sync {
    /// The state that the rule keeps for each parameter. Each is a tensor, 0 at the start, with one element for each
    /// element that this rank updates, or in [sizes of its own](UpdateRule::own_sizes).
    fn state(&self) -> &'static [RuleState];

    /// The sizes of a state without an element for each weight of the parameter, such as `[rows]`, or `[1]` for a number a
    /// parameter. `None`: the state has an element for each weight. `spec.whole` has the sizes of the whole parameter.
    ///
    /// All ranks with a shard of the parameter keep the whole state, and the rule gives the state the same values on all of
    /// them: see [`ParamUpdate::counted`]. So the rule must update [whole
    /// parameters](UpdateRule::updates_whole_parameters), or [`Optimizer::new`](super::Optimizer::new) fails.
    fn own_sizes(&self, _state: &RuleState, _spec: &ParamSpec) -> Option<Vec<usize>> {
        None
    }

    /// The update of `updates`, all parameters with an element that this rank updates, as recorded in every step. It
    /// reads the learning rate from `control` and the gradients' factor from `status`, and writes nothing in a step
    /// with gradients that are not finite. State on the host comes to the device for each operation that uses it: such
    /// an operation is small if the update has parts.
    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, params: &Params) -> Box<Update>;

    /// Whether the rule's update takes master weights that are kept as remainders, and gradients in bf16.
    fn takes_16_bits(&self) -> bool {
        false
    }

    /// Whether the rule's update needs whole parameters. Ranks that divide the state then divide it by parameters.
    fn updates_whole_parameters(&self) -> bool {
        false
    }

    /// The state that is a mean of gradients, if there is one. Where updates overwrite gradients, `trainer verify` takes
    /// gradients from that mean.
    fn mean_of_gradients(&self) -> Option<MeanOfGradients> {
        None
    }

    /// Whether the rule's update writes to the given gradients.
    fn overwrites_gradients(&self) -> bool {
        false
    }
}

/// A state that is a mean of gradients: an update makes it `decay` times itself plus `1 - decay` times the gradient after
/// clipping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanOfGradients {
    /// The state's name.
    pub state: &'static str,
    /// The share of the mean that stays.
    pub decay: f32,
}

/// Submits the update of a rule's parameters.
pub type Update = dyn Fn(&mut StepContext<'_>) -> Result<()>;

/// The tensors of one parameter that an update reads and writes. All but state in sizes of its own have the same number of
/// elements.
#[derive(Clone)]
pub struct ParamUpdate {
    /// The declaration.
    pub spec: ParamSpec,
    /// Master weights, f32, or remainders of master weights, u16; updated.
    pub master: Tensor,
    /// The weights that layers read, rewritten from the master weights; `None` if both are the same memory.
    pub weight: Option<Tensor>,
    /// `main_grad`, f32 or bf16.
    pub grad: Tensor,
    /// The rule's state, in the order of [`UpdateRule::state`].
    pub state: Vec<Tensor>,
    /// Weight decay of the parameter's group.
    pub weight_decay: f32,
    /// The factor of the learning rate of the parameter's group.
    pub lr_multiplier: f32,
}

impl ParamUpdate {
    /// The parts of the gradient that no earlier rank has, of the ranks that divide the parameter
    /// ([`Spread::cut_over`](crate::params::Spread::cut_over)). A sum over them, and then over these ranks, is one over
    /// the whole gradient.
    ///
    /// # Panics
    /// If ranks divide the state by elements: see [`UpdateRule::updates_whole_parameters`].
    pub fn counted(&self, ranks: &Ranks) -> Vec<Tensor> {
        let (spec, all) = (&self.spec, self.spec.spread.cut_over());
        let parts = spec.spread.parts.iter().zip(spec.stored_parts(ranks));
        let first = parts.filter(|(part, _)| ranks.place(all - part.cut_over()).is_first());
        first.map(|(_, range)| self.grad.view(range.start, [range.len()])).collect()
    }
}

/// The host's settings of a step and the results of the gradient norm, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct StepControl {
    /// u8, a [`device::ops::Control`].
    pub control: Tensor,
    /// u8, a [`device::ops::Status`].
    pub status: Tensor,
}
