//! The optimizer: gradient norm, clipping and the update of every parameter group, all on the device.
//!
//! A [`ParamGroup`] takes some parameters and has the [`UpdateRule`] that updates them. The device's rules
//! ([`Rule`](device::ops::Rule): AdamW, Lion and SGD) update each element by itself; a new one of these changes nothing
//! here. A rule that needs more than one operation, as [`Muon`] does, is a file with a type that implements the trait.

mod elementwise;
mod grad_norm;
mod group;
mod muon;
mod newton_schulz;
mod parts;
mod skip_step;

use std::collections::BTreeSet;
use std::sync::Arc;

use device::ops::{ClipScale, StateValues, Status, VoidStep};
use device::{Area, DType, Device, Home, Shape, Tensor};
use graph_manager::{Error, Result};

use crate::params::{ALIGNMENT, Param, Params};
use crate::step_policy::StepContext;
use grad_norm::GradNorm;
pub use group::{MeanOfGradients, ParamGroup, ParamUpdate, StepControl, Update, UpdateRule};
pub use muon::Muon;
use skip_step::SpikeTest;
pub use skip_step::{SkipStep, StepHistory};

/// A tensor that a rule keeps for a parameter.
#[derive(Clone, Debug)]
pub struct StateTensor {
    /// The state's name in a checkpoint.
    pub name: &'static str,
    /// The state, f32 or as [`MomentTypes`] says, in the shape of the parameter's master weights or in the rule's own
    /// sizes.
    pub tensor: Tensor,
    /// The sizes of a state that is not of the weights' shape, see [`UpdateRule::own_sizes`].
    pub own_sizes: Option<Vec<usize>>,
}

/// The stored types of the moments that rules keep, f32 or bf16. They are computed in f32, and rounded to nearest even
/// after the weights were updated. Other state is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MomentTypes {
    /// The first moment.
    pub exp_avg: DType,
    /// The second moment.
    pub exp_avg_sq: DType,
}

impl Default for MomentTypes {
    fn default() -> MomentTypes {
        MomentTypes { exp_avg: DType::F32, exp_avg_sq: DType::F32 }
    }
}

impl MomentTypes {
    /// The type of a rule's state, by kind of values.
    fn of(&self, values: StateValues) -> DType {
        match values {
            StateValues::FirstMoment => self.exp_avg,
            StateValues::SecondMoment => self.exp_avg_sq,
            StateValues::Others => DType::F32,
        }
    }
}

/// The optimizer's state and operations.
pub struct Optimizer {
    norm: GradNorm,
    /// One for each rule.
    updates: Vec<Box<Update>>,
    control: StepControl,
    /// Rows of experts that had no room, if rows have a budget.
    beyond: Option<Tensor>,
    /// The test for spikes; `None` if spikes are not skipped.
    spikes: Option<SpikeTest>,
    /// By parameter.
    state: Vec<Vec<StateTensor>>,
    state_names: Vec<&'static str>,
    areas: Vec<Area>,
    areas_on_host: Vec<Area>,
}

impl Optimizer {
    /// Puts each parameter that is not frozen in a group, and allocates state for the elements that this rank updates,
    /// set to 0.
    ///
    /// # Errors
    /// Out of memory; a parameter that no group takes; a rule that takes no 16 bits with masters or gradients of 16 bits;
    /// state in sizes of its own of a rule that does not update whole parameters.
    pub fn new(
        device: &Device,
        params: &Params,
        groups: &[ParamGroup],
        moments: MomentTypes,
        control: StepControl,
    ) -> Result<Optimizer> {
        device.zero(&control.status)?;
        let (mut areas, mut areas_on_host) = (Vec::new(), Vec::new());
        let mut state = vec![Vec::new(); params.specs.len()];
        let mut updates = Vec::new();
        for (rule, members) in by_rule(params, groups)? {
            let in_16_bits = |param: &Param| {
                param.master.dtype == DType::U16 || param.grad.is_some_and(|grad| grad.dtype == DType::Bf16)
            };
            if !rule.takes_16_bits() && members.iter().any(|member| in_16_bits(member.param)) {
                return Err(Error::Usage {
                    problem: format!("{rule:?} takes no remainders of master weights, and no gradients in bf16"),
                    fix: "keep both in f32, or use AdamW, Lion or SGD",
                });
            }
            for of in rule.state() {
                let (name, dtype) = (of.name, moments.of(of.values));
                for (home, areas) in [(Home::Device, &mut areas), (Home::Host, &mut areas_on_host)] {
                    let there = || members.iter().filter(|member| params.specs[member.index].state_home == home);
                    if there().next().is_none() {
                        continue;
                    }
                    let own_sizes = |member: &Member<'_, '_>| rule.own_sizes(of, &params.specs[member.index]);
                    let own_sizes: Vec<Option<Vec<usize>>> = there().map(own_sizes).collect();
                    if !rule.updates_whole_parameters() && own_sizes.iter().any(Option::is_some) {
                        return Err(Error::Usage {
                            problem: format!(
                                "{rule:?} keeps `{name}` in sizes of its own, and ranks may divide parameters"
                            ),
                            fix: "have `updates_whole_parameters` return true",
                        });
                    }
                    let shapes =
                        there().zip(&own_sizes).map(|(member, sizes)| state_shape(member.param, sizes.as_deref()));
                    let tensors = zeroed(device, home, areas, (name, dtype), shapes)?;
                    for ((member, own_sizes), tensor) in there().zip(own_sizes).zip(tensors) {
                        state[member.index].push(StateTensor { name, tensor, own_sizes });
                    }
                }
            }
            let members = members.iter().filter(|member| member.param.owned.elements > 0);
            let update = members.filter_map(|&Member { index, param, group }| {
                Some(ParamUpdate {
                    spec: params.specs[index].clone(),
                    master: param.master,
                    weight: param.owned_weight,
                    grad: param.owned_grad?,
                    state: state[index].iter().map(|state| state.tensor).collect(),
                    weight_decay: group.weight_decay,
                    lr_multiplier: group.lr_multiplier,
                })
            });
            updates.push(rule.update(update.collect(), control, params));
        }
        let norm = GradNorm::new(params);
        let (names, mut seen) = (groups.iter().flat_map(|group| group.rule.state()), BTreeSet::new());
        let state_names = names.map(|state| state.name).filter(|name| seen.insert(*name)).collect();
        Ok(Optimizer { norm, updates, control, beyond: None, spikes: None, state, state_names, areas, areas_on_host })
    }

    /// The same optimizer, without updates in steps with rows of experts that had no room: `(1)`, f32.
    pub(crate) fn voiding(self, beyond: Option<Tensor>) -> Optimizer {
        Optimizer { beyond, ..self }
    }

    /// The same optimizer, without updates in steps that are spikes. `loss_sum` is the sum of the losses of all ranks,
    /// `(1)`, f32.
    ///
    /// # Errors
    /// Out of memory.
    pub fn skipping_spikes(mut self, device: &Device, of: SkipStep, loss_sum: Tensor) -> Result<Optimizer> {
        self.spikes = Some(SpikeTest::new(device, &mut self.areas, of, loss_sum, self.control)?);
        Ok(self)
    }

    /// Gradient norm, clip factor, and the update of every group. Nothing is updated when the norm is not finite, or when the
    /// step is a spike and such steps are skipped.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn update(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let square_sum = self.norm.square_sum(cx)?;
        let StepControl { control, status } = self.control;
        cx.run(ClipScale { square_sum, control, status })?;
        if let Some(beyond) = self.beyond {
            cx.run(VoidStep { beyond, status })?;
        }
        if let Some(spikes) = &self.spikes {
            spikes.submit(cx)?;
        }
        self.updates.iter().try_for_each(|update| update(cx))
    }

    /// The counters of updates, and the history for finding spikes, if spikes are skipped.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn counters(&self, device: &Device) -> device::Result<(Status, Option<StepHistory>)> {
        let status: Status = bytemuck::pod_read_unaligned(&device.download::<u8>(&self.control.status)?);
        let history = self.spikes.as_ref().map(|spikes| spikes.history(device, status.recorded)).transpose()?;
        Ok((status, history))
    }

    /// Continues from the counters of `status`, and from `history` if spikes are skipped.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_counters(&self, device: &Device, status: Status, history: Option<&StepHistory>) -> device::Result<()> {
        let recorded = match (&self.spikes, history) {
            (Some(spikes), Some(history)) => spikes.set_history(device, history)?,
            _ => 0,
        };
        device.upload(&self.control.status, bytemuck::bytes_of(&Status { recorded, ..status }))
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

    /// Bytes of the state that lies there, with padding.
    pub fn state_bytes_in(&self, home: Home) -> usize {
        let areas = if home == Home::Host { &self.areas_on_host } else { &self.areas };
        areas.iter().map(Area::bytes).sum()
    }
}

/// A parameter's index and memory, and the parameter's group.
#[derive(Clone, Copy)]
struct Member<'g, 'p> {
    index: usize,
    param: &'p Param,
    group: &'g ParamGroup,
}

/// A rule, and the parameters that the rule updates.
type RuleMembers<'g, 'p> = (&'g Arc<dyn UpdateRule>, Vec<Member<'g, 'p>>);

/// The rules of all groups, each with the rule's parameters in order of declaration, without frozen parameters.
fn by_rule<'g, 'p>(params: &'p Params, groups: &'g [ParamGroup]) -> Result<Vec<RuleMembers<'g, 'p>>> {
    let mut rules: Vec<RuleMembers<'_, '_>> = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate().filter(|(_, (spec, _))| !spec.frozen) {
        let Some(group) = groups.iter().find(|group| group.has(spec)) else {
            return Err(Error::Usage {
                problem: format!("no parameter group takes `{}`", spec.name),
                fix: "end the list with a group that takes every parameter",
            });
        };
        let member = Member { index, param, group };
        match rules.iter_mut().find(|(rule, _)| Arc::ptr_eq(rule, &group.rule)) {
            Some((_, members)) => members.push(member),
            None => rules.push((&group.rule, vec![member])),
        }
    }
    Ok(rules)
}

/// The shape of a parameter's state on a rank: that of the master weights, or sizes of its own, whole on each rank that updates
/// the parameter.
fn state_shape(param: &Param, own_sizes: Option<&[usize]>) -> Shape {
    own_sizes.filter(|_| param.owned.elements > 0).map_or(param.master.shape, Shape::new)
}

/// Tensors of `shapes`, all in one area that is set to 0.
fn zeroed(
    device: &Device,
    home: Home,
    areas: &mut Vec<Area>,
    (name, dtype): (&str, DType),
    shapes: impl Iterator<Item = Shape>,
) -> Result<Vec<Tensor>> {
    let mut end = 0;
    let place = |shape: Shape| {
        let start = end;
        end += shape.elements().next_multiple_of(ALIGNMENT);
        (start, shape)
    };
    let places: Vec<_> = shapes.map(place).collect();
    let all = device.allocate_tensor_in(home, areas, name, [end.max(ALIGNMENT)], dtype)?;
    device.zero(&all)?;
    Ok(places.into_iter().map(|(start, shape)| all.view(start, shape)).collect())
}
