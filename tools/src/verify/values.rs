//! The values of parameters that a rank has: what a step left there, and what a checkpoint keeps.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use device::{DType, Device, Float, Tensor, bf16};
use engine::params::{ParamSpec, Slab};
use engine::step::Stage;
use trainer::config::plan::RunPlan;
use trainer::error::RunError;

/// Values of a parameter. A fault shows first in the one that comes first here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Values {
    /// The gradient, summed over all ranks.
    Gradient,
    /// A state of the optimizer.
    State(&'static str),
    /// The change of the weights in the step.
    Update,
    /// The master weights.
    Weight,
    /// The magnitudes that delayed scales follow from.
    Magnitudes(&'static str),
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Gradient => f.write_str("gradient"),
            Values::State(name) => write!(f, "optimizer state `{name}`"),
            Values::Update => f.write_str("update"),
            Values::Weight => f.write_str("weight"),
            Values::Magnitudes(name) => write!(f, "history `{name}`"),
        }
    }
}

/// A shard of a parameter's values that a rank has.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) values: Values,
    /// The parameter.
    pub(super) name: String,
    /// The sizes of the whole parameter.
    pub(super) whole: Vec<usize>,
    /// The place in the whole parameter.
    pub(super) slab: Slab,
    pub(super) here: Vec<f32>,
    /// The largest weight in the shard, for updates: they are rounded as it is.
    pub(super) largest_weight: f32,
}

/// Weights and states of the optimizer before a step.
pub(super) struct Before(HashMap<(Values, String), Vec<f32>>);

impl Before {
    pub(super) fn new(stage: &Stage) -> Result<Before, RunError> {
        let owned = owned(stage)?.into_iter();
        Ok(Before(owned.map(|of| ((of.values, of.spec.name.clone()), of.here)).collect()))
    }
}

/// Values that this rank updates.
struct Owned<'s> {
    spec: &'s ParamSpec,
    values: Values,
    /// The elements of the stored parameter that the values are of.
    range: Range<usize>,
    here: Vec<f32>,
    /// The sizes of a state that differ from the parameter's.
    own_sizes: Option<Vec<usize>>,
}

impl Owned<'_> {
    fn shards(&self) -> Vec<Shard> {
        match &self.own_sizes {
            Some(sizes) => vec![whole_shard(self.values, self.spec, sizes, self.here.clone())],
            None => shards_of(self.values, self.spec, self.range.clone(), &self.here),
        }
    }
}

/// The master weights and the states of the elements that this rank updates.
fn owned(stage: &Stage) -> Result<Vec<Owned<'_>>, RunError> {
    let (device, mut all) = (stage.device(), Vec::new());
    for (index, (spec, param)) in stage.params().iter().enumerate() {
        if param.owned.elements > 0 {
            let range = param.owned.range();
            let weights = param.master_values(device)?;
            all.push(Owned { spec, values: Values::Weight, range: range.clone(), here: weights, own_sizes: None });
            for state in stage.optimizer().state(index) {
                let (here, own_sizes) = (read(device, &state.tensor)?, state.own_sizes.clone());
                all.push(Owned { spec, values: Values::State(state.name), range: range.clone(), here, own_sizes });
            }
        }
    }
    Ok(all)
}

/// What a step left on this rank: gradients, then states, then updates. `before` is what was there before the step, and
/// then what is there after it.
pub(super) fn left_by_step(plan: &RunPlan, stage: &Stage, before: &mut Before) -> Result<Vec<Shard>, RunError> {
    let device = stage.device();
    let factor = stage.optimizer().counters(device)?.0.grad_factor;
    let overwrites = plan.optimizer.groups.iter().any(|group| group.rule.overwrites_gradients());
    let mut shards = Vec::new();
    for (spec, param) in stage.params().iter().filter(|_| !overwrites) {
        if let Some(gradient) = param.owned_grad.filter(|gradient| gradient.elements() > 0) {
            shards.extend(shards_of(Values::Gradient, spec, param.owned.range(), &read(device, &gradient)?));
        }
    }
    for of in owned(stage)? {
        let Owned { spec, values, range, here: now, .. } = &of;
        let old = before.0.insert((*values, spec.name.clone()), now.clone()).unwrap_or_default();
        let (values, range) = (*values, range.clone());
        if values == Values::Weight {
            let largest_weight = now.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            let update: Vec<f32> = now.iter().zip(&old).map(|(now, old)| now - old).collect();
            let updates = shards_of(Values::Update, spec, range, &update).into_iter();
            shards.extend(updates.map(|shard| Shard { largest_weight, ..shard }));
            continue;
        }
        if let Some(decay) = decay(plan, values).filter(|_| overwrites) {
            let taken = |(now, old): (&f32, &f32)| (now - decay * old) / (1.0 - decay) / factor;
            let gradient: Vec<f32> = now.iter().zip(&old).map(taken).collect();
            shards.extend(shards_of(Values::Gradient, spec, range.clone(), &gradient));
        }
        shards.extend(of.shards());
    }
    shards.sort_by_key(|shard| shard.values);
    Ok(shards)
}

/// The decay of a state that is a mean of gradients: the gradient that an update took follows from the mean before and after.
fn decay(plan: &RunPlan, values: Values) -> Option<f32> {
    let mut means = plan.optimizer.groups.iter().filter_map(|group| group.rule.mean_of_gradients());
    means.find(|mean| Values::State(mean.state) == values).map(|mean| mean.decay)
}

/// What a checkpoint keeps of this rank: weights, states, and the magnitudes of delayed scales.
pub(super) fn kept(stage: &Stage) -> Result<Vec<Shard>, RunError> {
    let mut shards: Vec<Shard> = owned(stage)?.iter().flat_map(Owned::shards).collect();
    for (spec, param) in stage.params().iter() {
        // Of frozen weights that ranks divide, each owns a part.
        if spec.frozen && param.owned.elements == 0 {
            let weights = param.master_values(stage.device())?;
            shards.extend(shards_of(Values::Weight, spec, 0..weights.len(), &weights));
        }
        let Some(fp8) = param.fp8 else { continue };
        for (name, cell) in [("input_amax", fp8.input), ("grad_output_amax", fp8.grad_output)] {
            let Some(cell) = cell else { continue };
            let here = read(stage.device(), &cell.history)?;
            shards.push(whole_shard(Values::Magnitudes(name), spec, &[here.len()], here));
        }
    }
    Ok(shards)
}

/// Values of the given sizes that a rank has whole.
fn whole_shard(values: Values, spec: &ParamSpec, sizes: &[usize], here: Vec<f32>) -> Shard {
    let slab = Slab { offset: vec![0; sizes.len()], sizes: sizes.to_vec(), start: 0 };
    Shard { values, name: spec.name.clone(), whole: sizes.to_vec(), slab, here, largest_weight: 0.0 }
}

/// The shards that a range of a stored parameter's values makes up.
fn shards_of(values: Values, spec: &ParamSpec, range: Range<usize>, here: &[f32]) -> Vec<Shard> {
    let slabs = spec.slabs.iter().flat_map(|slab| slab.within(range.clone()));
    let shard = |slab: Slab| Shard {
        values,
        name: spec.name.clone(),
        whole: spec.whole.clone(),
        here: here[slab.start - range.start..][..slab.elements()].to_vec(),
        slab,
        largest_weight: 0.0,
    };
    slabs.map(shard).collect()
}

fn read(device: &Device, tensor: &Tensor) -> device::Result<Vec<f32>> {
    match tensor.dtype {
        DType::Bf16 => Ok(device.download::<bf16>(tensor)?.into_iter().map(Float::to_f32).collect()),
        _ => device.download(tensor),
    }
}
