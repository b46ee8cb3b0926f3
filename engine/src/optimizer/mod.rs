//! The optimizer: gradient norm, clipping and the update of every parameter group, all on the device.
//!
//! A [`ParamGroup`] says which parameters it takes and which [`UpdateRule`] updates them. [`AdamW`],
//! [`Lion`], [`Muon`] and [`Sgd`] are rules.
//! A new rule is a type that implements the trait; nothing else here changes.

mod adamw;
mod grad_norm;
mod group;
mod lion;
mod muon;
mod newton_schulz;
mod sgd;

use std::rc::Rc;
use std::sync::Arc;

use device::ops::ClipScale;
use device::{Area, Communicator, DType, Device, Tensor};
use graph_manager::{Error, Result};

use crate::params::{ALIGNMENT, Param, Params};
use crate::step_policy::StepContext;
pub use adamw::AdamW;
use grad_norm::{GradNorm, NormGroups};
pub use group::{ParamGroup, ParamUpdate, StepControl, Update, UpdateRanks, UpdateRule};
pub use lion::Lion;
pub use muon::Muon;
pub use sgd::Sgd;

/// A tensor that a rule keeps for a parameter: its name in a checkpoint, and f32 values in the shape of the parameter's
/// master weights.
pub type StateTensor = (&'static str, Tensor);

/// The other ranks of an optimizer. `None`: there are none of that kind.
#[derive(Default)]
pub struct OptimizerRanks {
    /// The data-parallel ranks.
    pub data_parallel: Option<Rc<dyn Communicator>>,
    /// The ranks that share layers.
    pub tensor_parallel: Option<Rc<dyn Communicator>>,
    /// The stages of the pipeline.
    pub pipeline: Option<Rc<dyn Communicator>>,
}

/// The optimizer's state and operations.
pub struct Optimizer {
    norm: GradNorm,
    /// One for each rule.
    updates: Vec<Box<Update>>,
    control: StepControl,
    /// By parameter.
    state: Vec<Vec<StateTensor>>,
    state_names: Vec<&'static str>,
    areas: Vec<Area>,
}

impl Optimizer {
    /// Puts each parameter that is not frozen in a group, and allocates state for what this rank updates, set to 0.
    ///
    /// # Errors
    /// Out of memory; a parameter that no group takes.
    pub fn new(
        device: &Device,
        params: &Params,
        groups: &[ParamGroup],
        control: StepControl,
        ranks: OptimizerRanks,
    ) -> Result<Optimizer> {
        device.zero(&control.status)?;
        let mut areas = Vec::new();
        let mut state = vec![Vec::new(); params.specs.len()];
        let mut updates = Vec::new();
        let OptimizerRanks { data_parallel, tensor_parallel, pipeline } = ranks;
        let shard = params.optimizer_shard();
        let norm_groups = NormGroups {
            data_parallel: data_parallel.clone().filter(|_| shard.is_part()),
            tensor_parallel: tensor_parallel.clone(),
            pipeline,
        };
        let buckets = params.buckets().map(|bucket| bucket.grads).collect();
        let ranks = UpdateRanks { data_parallel, tensor_parallel, shard, buckets };
        for (rule, members) in by_rule(params, groups)? {
            for name in rule.state() {
                let tensors = zeroed(device, &mut areas, name, members.iter().map(|(_, param, _)| *param))?;
                members.iter().zip(tensors).for_each(|((index, ..), tensor)| state[*index].push((*name, tensor)));
            }
            let takes = |param: &Param| rule.overwrites_gradients() || param.owned.elements > 0;
            let members = members.iter().filter(|(_, param, _)| takes(param));
            let update = members.filter_map(|&(index, param, weight_decay)| {
                Some(ParamUpdate {
                    spec: params.specs[index].clone(),
                    whole_grad: param.grad?,
                    master: param.master,
                    weight: param.owned_weight,
                    grad: param.owned_grad()?,
                    state: state[index].iter().map(|(_, tensor)| *tensor).collect(),
                    weight_decay,
                })
            });
            updates.push(rule.update(update.collect(), control, &ranks));
        }
        let norm = GradNorm::new(params, norm_groups);
        let mut state_names = Vec::new();
        for name in groups.iter().flat_map(|group| group.rule.state()) {
            if !state_names.contains(name) {
                state_names.push(*name);
            }
        }
        Ok(Optimizer { norm, updates, control, state, state_names, areas })
    }

    /// Gradient norm, clip factor, and the update of every group. Nothing is updated when the norm is not finite.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn update(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let square_sum = self.norm.square_sum(cx)?;
        let StepControl { control, status } = self.control;
        cx.run(ClipScale { square_sum, control, status })?;
        self.updates.iter().try_for_each(|update| update(cx))
    }

    /// u8, a [`device::ops::Status`].
    pub fn status(&self) -> Tensor {
        self.control.status
    }

    /// The state of the parameter with that index.
    pub fn state(&self, index: usize) -> &[StateTensor] {
        &self.state[index]
    }

    /// The names of the states that the rules keep, each once. This rank may have no parameter with such a state.
    pub fn state_names(&self) -> &[&'static str] {
        &self.state_names
    }

    /// Bytes of all state, with padding.
    pub fn state_bytes(&self) -> usize {
        self.areas.iter().map(Area::bytes).sum()
    }
}

/// A parameter's index and memory, and the weight decay of its group.
type Member<'p> = (usize, &'p Param, f32);

/// A rule, and the parameters that it updates.
type RuleMembers<'g, 'p> = (&'g Arc<dyn UpdateRule>, Vec<Member<'p>>);

/// The rules of all groups, each with its parameters in order of declaration, without frozen ones.
fn by_rule<'g, 'p>(params: &'p Params, groups: &'g [ParamGroup]) -> Result<Vec<RuleMembers<'g, 'p>>> {
    let mut rules: Vec<RuleMembers<'_, '_>> = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate().filter(|(_, (spec, _))| !spec.frozen) {
        let Some(group) = groups.iter().find(|group| (group.takes)(spec)) else {
            return Err(Error::Usage {
                problem: format!("no parameter group takes `{}`", spec.name),
                fix: "end the list with a group that takes every parameter",
            });
        };
        let member = (index, param, group.weight_decay);
        match rules.iter_mut().find(|(rule, _)| Arc::ptr_eq(rule, &group.rule)) {
            Some((_, members)) => members.push(member),
            None => rules.push((&group.rule, vec![member])),
        }
    }
    rules.sort_by_key(|(rule, _)| rule.overwrites_gradients());
    Ok(rules)
}

/// A tensor for each parameter, f32, of the shape of its master weights, all in one area that is set to 0.
fn zeroed<'p>(
    device: &Device,
    areas: &mut Vec<Area>,
    name: &str,
    params: impl Iterator<Item = &'p Param>,
) -> Result<Vec<Tensor>> {
    let mut end = 0;
    let place = |param: &'p Param| {
        let start = end;
        end += param.owned.elements.next_multiple_of(ALIGNMENT);
        (start, param.master.shape)
    };
    let places: Vec<_> = params.map(place).collect();
    let all = device.allocate_tensor(areas, name, [end.max(ALIGNMENT)], DType::F32)?;
    device.zero(&all)?;
    Ok(places.into_iter().map(|(start, shape)| all.view(start, shape)).collect())
}
