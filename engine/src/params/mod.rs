//! The parameters of a model: their names, their memory, their first values.

mod buckets;
mod codes;
mod first_values;
mod flat_layout;
mod masters;
mod owned_range;
mod owners;
mod sharding;
mod slab;
mod spec;
mod spread;
mod state_home;
mod weight_memory;

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use device::{Area, BufferId, DType, Device, Home, Result, Shape, Tensor};
use parallel::{Axes, Ranks};

use crate::fp8::{Fp8Counts, Fp8Memory, Fp8Param, ScaleState};

pub use buckets::{
    BucketMemory, CodesOfLayer, OwnedQuantized, OwnedShard, PartedWeights, PartialRange, QuantizedShard, WeightSource,
};
pub use codes::{CodeMemory, Codes};
pub(crate) use flat_layout::ALIGNMENT;
pub(crate) use flat_layout::TURNS_OF_ENDS;
use flat_layout::{FlatLayout, HomeSize, ParamOffsets};
pub use masters::MasterForm;
use masters::{rounded, upload_masters};
pub use owned_range::OwnedRange;
pub(crate) use owners::{Belonging, owners};
pub use sharding::{Division, Sharding};
pub use slab::Slab;
pub use spec::{Init, ParamSpec, TiedCopy};
pub use spread::{Cut, Part, Spread};
pub(crate) use state_home::with_state_on_host;
use weight_memory::{ParamMemory, WeightMemory};

/// A parameter in memory.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The weights that layers read, in the parameter's shape. If ranks divide master weights the elements of other
    /// ranks are gathered by the next step's forward. Until then only the owned ones are current. Of weights that
    /// layers take turns to gather none are, but while their layer runs.
    pub weight: Tensor,
    /// The master weights, f32, or u16 if [`MasterForm`] says so. For an f32 parameter they are the same memory as `weight`;
    /// for an 8-bit one too, unless several ranks divide them. They have the parameter's shape, or with a distributed
    /// optimizer the owned elements, flat. A frozen parameter has none: here are its weights, in their type.
    pub master: Tensor,
    /// The owned elements in the type that layers read, flat, rewritten by each update; `None` if `master` has that
    /// type, or if the elements are quantised before a gather.
    pub owned_weight: Option<Tensor>,
    /// The gradient in `main_grad`, f32 or bf16, in the parameter's shape; `None` if the parameter is frozen. If ranks
    /// divide gradients these are those of a microbatch, until the next layer of the same turn computes its own.
    pub grad: Option<Tensor>,
    /// The gradients of the elements that this rank updates, flat; `None` if the parameter is frozen.
    pub owned_grad: Option<Tensor>,
    /// The elements that this rank updates; none of a frozen parameter.
    pub owned: OwnedRange,
    /// The 8-bit copies, if the parameter's products have 8-bit factors.
    pub fp8: Option<Fp8Param>,
    /// The memory of codes, if the parameter's values lie as codes: of all, or of the owned elements if ranks divide
    /// them. `master` then is the memory of these.
    pub codes: Option<CodeMemory>,
}

impl Param {
    /// The master weights of the elements that this rank updates; of a frozen parameter the weights.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn master_values(&self, device: &Device) -> Result<Vec<f32>> {
        if let Some(codes) = self.codes {
            return codes.values(device, self.weight.dtype);
        }
        masters::download(device, &self.master, self.owned_weight)
    }
}

/// All parameters of a rank. Each kind of memory is one flat buffer: `main_grad`, and for each [`WeightMemory`] the weights
/// and, unless they are f32, the master weights.
pub struct Params {
    /// The declarations.
    pub specs: Vec<ParamSpec>,
    ranks: Rc<Ranks>,
    /// The ranks that divide masters and state.
    rest: Axes,
    /// The ranks that divide parameters, in memory or at rest.
    divided: Axes,
    params: Vec<Param>,
    by_name: HashMap<String, usize>,
    /// All of `main_grad`, flat, as f32: gradients in f32, then two gradients in bf16 in each.
    pub grads: Tensor,
    weights: Vec<Weights>,
    fp8: Fp8Memory,
    layout: FlatLayout,
    _areas: Vec<Area>,
}

/// The weights of one [`ParamMemory`].
struct Weights {
    home: ParamMemory,
    /// Flat. All of them, or of gathered weights the owned part.
    weights: Tensor,
    /// The master weights that this rank owns, in the masters' form, flat; `None` for f32 weights, which need no
    /// separate masters, and for frozen weights.
    masters: Option<Tensor>,
    /// Of gathered weights, and of weights that lie as codes: the buffers that layers take turns in, each
    /// as large as the largest layer.
    turns: Vec<Tensor>,
    /// Set if the weights lie as codes. `weights` then is the memory of these.
    codes: Option<CodeMemory>,
    /// Of codes that ranks divide: memory that layers gather theirs in, one after the other.
    gathered_codes: Option<CodeMemory>,
}

impl Params {
    /// Allocates weights and gradients, in buckets of at least `bucket_bytes` of gradients, and fills the weights with
    /// first values. Without a seed the weights stay 0 until a load. Of the ranks `rest` those with other tokens
    /// divide master weights and optimizer state.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        specs: Vec<ParamSpec>,
        seed: Option<u64>,
        bucket_bytes: usize,
        ranks: Rc<Ranks>,
        rest: Axes,
    ) -> Result<Params> {
        let specs: Vec<ParamSpec> = specs.into_iter().map(|spec| spec.resting(&ranks, rest)).collect();
        let layout = FlatLayout::new(&specs, bucket_bytes, &ranks);
        let all = Params::allocate(device, specs, ranks, rest, layout, true)?;
        device.zero(&all.grads)?;
        if let Some(seed) = seed.filter(|_| !device.is_dry()) {
            all.set_first(device, 0..all.specs.len(), seed)?;
        }
        Ok(all)
    }

    /// Whether a tensor is one of master weights on the host.
    pub(crate) fn is_on_host(&self, tensor: Tensor) -> bool {
        let of_host = self.weights.iter().filter(|weights| weights.home.masters == Home::Host);
        of_host.filter_map(|weights| weights.masters).any(|masters| masters.buffer == tensor.buffer)
    }

    /// Allocates weights alone, for a model that is not trained. They are zero until they are [set](Params::set).
    ///
    /// # Errors
    /// Out of memory.
    pub fn without_gradients(device: &Device, specs: Vec<ParamSpec>) -> Result<Params> {
        // Such a model computes in 16 bits.
        let specs: Vec<ParamSpec> =
            specs.into_iter().map(|spec| ParamSpec { fp8: None, codes: None, ..spec }).collect();
        let ranks = Ranks::alone();
        let layout = FlatLayout::new(&specs, usize::MAX, &ranks);
        Params::allocate(device, specs, ranks, Axes::NONE, layout, false)
    }

    fn allocate(
        device: &Device,
        specs: Vec<ParamSpec>,
        ranks: Rc<Ranks>,
        rest: Axes,
        layout: FlatLayout,
        gradients: bool,
    ) -> Result<Params> {
        let mut areas = Vec::new();
        let mut weights = Vec::new();
        for &of in &layout.by_home {
            weights.push(Weights::allocate(device, &mut areas, &layout, of)?);
        }
        let words = layout.f32_gradients + layout.bf16_gradients.div_ceil(2);
        let grads = match gradients {
            true => device.allocate_tensor(&mut areas, "main_grad", [words], DType::F32)?,
            false => device.virtual_tensor("main_grad", [words], DType::F32), // an address that no operation may use
        };
        let param = |(spec, place): (&ParamSpec, &ParamOffsets)| {
            let of_memory = of_home(&weights, place.home);
            let owned = place.owned;
            let shape =
                if ranks.place(place.home.rest).has_others() { Shape::new(&[owned.elements]) } else { spec.shape };
            let masters = of_memory.masters.map(|masters| masters.view(place.master, shape));
            let grads = grads_of(grads, &layout, place.home.grads);
            let grad = place.grad.map(|grad| grads.view(grad, spec.shape));
            let owned_grad = grad.map(|_| grads.view(place.owned_grad, [owned.elements]));
            let over = |weight, master, owned_weight| Param {
                weight,
                master,
                owned_weight,
                grad,
                owned_grad,
                owned,
                fp8: None,
                codes: None,
            };
            match place.home.memory {
                WeightMemory::Frozen(_) => {
                    let weight = of_memory.weights.view(place.flat, spec.shape);
                    over(weight, weight, None)
                }
                WeightMemory::Coded(..) | WeightMemory::GatheredCodes(..) => {
                    let weight = of_memory.turns[place.turn.buffer].view(place.turn.start, spec.shape);
                    let (owned, first, here) = match place.is_gathered {
                        true => (owned, place.master, owned.elements),
                        false => (OwnedRange::default(), place.flat, spec.shape.elements()),
                    };
                    let codes = of_memory.codes.map(|all| all.part(first, here));
                    let master = codes.map_or(weight, |own| own.codes);
                    Param { owned, codes, ..over(weight, master, None) }
                }
                WeightMemory::Kept(_) => {
                    let weight = of_memory.weights.view(place.flat, spec.shape);
                    let owned_of = |shape| weight.view(owned.first, shape);
                    let owned_weight = masters.is_some().then(|| owned_of([owned.elements].into()));
                    let master = masters.unwrap_or_else(|| owned_of(shape));
                    over(weight, master, owned_weight)
                }
                WeightMemory::Gathered(_) | WeightMemory::GatheredFrozen(_) => {
                    let weight = of_memory.turns[place.turn.buffer].view(place.turn.start, spec.shape);
                    let owned_weight = of_memory.weights.view(place.master, [owned.elements]);
                    let master = masters.unwrap_or(owned_weight);
                    let owned_weight = Some(owned_weight).filter(|own| masters.is_some() && !own.dtype.is_fp8());
                    over(weight, master, owned_weight)
                }
            }
        };
        let mut params: Vec<Param> = specs.iter().zip(&layout.params).map(param).collect();
        let made = |index: usize| layout.params[index].home.copies_made();
        let fp8 = Fp8Memory::allocate(device, &specs, &params, made)?;
        params.iter_mut().zip(&fp8.params).for_each(|(param, fp8)| param.fp8 = *fp8);
        let by_name = specs.iter().enumerate().map(|(i, spec)| (spec.name.clone(), i)).collect();
        let divided = rest | ranks.mesh().with_other_weights();
        Ok(Params { specs, ranks, rest, divided, params, by_name, grads, weights, fp8, layout, _areas: areas })
    }

    /// Overwrites a parameter with f32 values of the parameter's stored shape: the weights that layers read and the
    /// master weights.
    ///
    /// # Errors
    /// Another number of values.
    pub fn set(&self, device: &Device, index: usize, values: &[f32]) -> Result<()> {
        let Param { weight, master, owned, .. } = self.params[index];
        // Taken after the upload that checks the number of values.
        let part = || &values[owned.range()];
        match self.layout.params[index].home.memory {
            WeightMemory::Kept(DType::F32) | WeightMemory::Frozen(DType::F32) => device.upload(&weight, values),
            WeightMemory::Frozen(_) => {
                device.upload(&weight, &rounded(values, master.dtype))?;
                match self.params[index].fp8 {
                    Some(fp8) if !device.is_dry() => {
                        let stream = device.stream("8-bit copies");
                        fp8.make_once(&stream)?;
                        stream.synchronize()
                    }
                    _ => Ok(()),
                }
            }
            WeightMemory::Kept(_) => {
                device.upload(&weight, &rounded(values, master.dtype))?;
                if owned.elements == 0 { Ok(()) } else { upload_masters(device, &master, part()) }
            }
            WeightMemory::Gathered(_) | WeightMemory::GatheredFrozen(_) | WeightMemory::GatheredCodes(..) => {
                self.set_owned(device, index, part())
            }
            WeightMemory::Coded(..) => self.params[index].codes.map_or(Ok(()), |codes| codes.set(device, values)),
        }
    }

    /// The stored elements of a parameter that need values before the first step: all, or those that this rank updates
    /// if a step gathers the others.
    pub fn needed(&self, index: usize) -> Range<usize> {
        match self.layout.params[index].is_gathered {
            true => self.params[index].owned.range(),
            false => 0..self.specs[index].shape.elements(),
        }
    }

    /// Overwrites the elements that [`Params::needed`] says with the elements' values.
    ///
    /// # Errors
    /// Another number of values.
    pub fn set_needed(&self, device: &Device, index: usize, values: &[f32]) -> Result<()> {
        match self.layout.params[index].is_gathered {
            true => self.set_owned(device, index, values),
            false => self.set(device, index, values),
        }
    }

    /// Overwrites the elements that this rank updates, of a weight whose other elements come from other ranks.
    fn set_owned(&self, device: &Device, index: usize, part: &[f32]) -> Result<()> {
        let Param { master, owned_weight, codes, .. } = self.params[index];
        if part.is_empty() {
            return Ok(());
        }
        if let Some(codes) = codes {
            return codes.set(device, part);
        }
        if self.specs[index].frozen && master.dtype == DType::Bf16 {
            return device.upload(&master, &rounded(part, master.dtype));
        }
        if let Some(owned_weight) = owned_weight {
            device.upload(&owned_weight, &rounded(part, master.dtype))?;
        }
        upload_masters(device, &master, part)
    }

    /// The parameter of that name.
    ///
    /// # Panics
    /// If the model declared no such parameter. A layer asks only for parameters that it declared itself.
    pub fn get(&self, name: &str) -> Param {
        match self.by_name.get(name) {
            Some(&index) => self.params[index],
            None => panic!("the model declares no parameter `{name}`"),
        }
    }

    /// All parameters, each with a declaration.
    pub fn iter(&self) -> impl Iterator<Item = (&ParamSpec, &Param)> {
        self.specs.iter().zip(&self.params)
    }

    /// The rank that has the parameters, and the rank's communicators.
    pub fn ranks(&self) -> &Rc<Ranks> {
        &self.ranks
    }

    /// The ranks that divide parameters or state of a stage, whichever parameters this rank has.
    pub fn divided(&self) -> Axes {
        self.divided
    }

    /// The number of ranks that divide the optimizer's state beyond the parameters.
    pub fn state_ranks(&self) -> usize {
        self.ranks.place(self.rest).count
    }

    /// The stored elements of a parameter that this rank updates and counts: in the gradient norm, and in checkpoints. Each
    /// element of the whole counts on one of the ranks that [divide](Params::divided) parameters. Of a frozen parameter
    /// these are the elements that it saves.
    pub fn counted(&self, index: usize) -> Vec<Range<usize>> {
        let (spec, owned) = (&self.specs[index], self.params[index].owned);
        let counted = spec.counted(&self.ranks, self.divided()).into_iter();
        let memory = self.layout.params[index].home.memory;
        let has_all = matches!(memory, WeightMemory::Frozen(_) | WeightMemory::Coded(..));
        let owned = counted.map(|range| if has_all { range } else { owned.within(range) });
        owned.filter(|range| !range.is_empty()).collect()
    }

    /// Whether the parameter's first element is among the elements that are [counted](Params::counted) here.
    pub fn counts_first(&self, index: usize) -> bool {
        let first = |slab: &&Slab| slab.offset.iter().all(|&at| at == 0);
        let start = self.specs[index].slabs.iter().find(first).map(|slab| slab.start);
        start.is_some_and(|start| self.counted(index).iter().any(|range| range.contains(&start)))
    }

    /// The buffer that all gradients lie in.
    pub fn gradient_buffer(&self) -> BufferId {
        self.grads.buffer
    }

    /// The state of delayed scaling; `None` if nothing is scaled so.
    pub fn delayed_scales(&self) -> Option<&ScaleState> {
        self.fp8.scales.as_ref()
    }

    /// The counts of the values that 8-bit copies lose, for steps that measure; `None` without 8-bit weights.
    pub(crate) fn fp8_counts(&self) -> Option<&Fp8Counts> {
        self.fp8.counts.as_ref()
    }

    /// Bytes of 8-bit copies of weights, and of scales.
    pub fn fp8_bytes(&self) -> usize {
        self.fp8.bytes()
    }

    /// Bytes of the weights that layers read, f32 weights included.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(Weights::bytes).sum()
    }

    /// Bytes of weights that also are masters.
    pub fn own_master_bytes(&self) -> usize {
        let own = |weights: &&Weights| weights.masters.is_none() && !weights.home.memory.is_frozen();
        self.weights.iter().filter(own).map(|weights| weights.weights.bytes()).sum()
    }

    /// Bytes of the weights of frozen parameters.
    pub fn frozen_bytes(&self) -> usize {
        self.weights.iter().filter(|weights| weights.home.memory.is_frozen()).map(Weights::bytes).sum()
    }

    /// Bytes of the master weights there that have separate memory; 0 if all parameters are f32.
    pub fn master_bytes_in(&self, home: Home) -> usize {
        let there = self.weights.iter().filter(|weights| weights.home.masters == home);
        there.filter_map(|weights| weights.masters).map(|masters| masters.bytes()).sum()
    }
}

impl Weights {
    /// Allocates the weights of one memory, so many elements, and sets all to 0.
    fn allocate(
        device: &Device,
        areas: &mut Vec<Area>,
        layout: &FlatLayout,
        HomeSize { home, elements, owned }: HomeSize,
    ) -> Result<Weights> {
        let mut flat_in = |memory, name, elements, dtype| {
            let tensor = device.allocate_tensor_in(memory, areas, name, [elements], dtype)?;
            device.zero(&tensor)?;
            Ok::<_, device::Error>(tensor)
        };
        let memory = home.memory;
        // A rank may own none of few parameters, and no tensor is empty.
        let (dtype, owned) = (memory.dtype(), owned.max(ALIGNMENT));
        let here = if memory.is_gathered() { owned } else { elements };
        let (mut codes, mut gathered_codes) = (None, None);
        let weights = match memory.codes() {
            None => flat_in(Home::Device, "weights", here, dtype)?,
            Some(form) => {
                let here = CodeMemory::allocate(form, here, ["weights", "weight scales"], &mut flat_in)?;
                codes = Some(here);
                here.codes
            }
        };
        let has_masters = dtype != DType::F32 && !memory.is_frozen();
        let masters = has_masters.then(|| flat_in(home.masters, "master weights", owned, home.form.of_weights(dtype)));
        let masters = masters.transpose()?;
        let mut turns = Vec::new();
        if memory.takes_turns() {
            let buckets = layout.buckets.iter().chain(&layout.frozen).filter(|bucket| bucket.home == home);
            let largest = buckets.map(|bucket| bucket.turn.start + bucket.elements).max().unwrap_or(0);
            for _ in 0..home.turns {
                turns.push(flat_in(Home::Device, "gathered weights", largest, dtype)?);
            }
            if let Some(form) = memory.codes().filter(|_| memory.is_gathered()) {
                let names = ["gathered codes", "gathered scales"];
                gathered_codes = Some(CodeMemory::allocate(form, largest, names, &mut flat_in)?);
            }
        }
        Ok(Weights { home, weights, masters, turns, codes, gathered_codes })
    }

    /// Bytes of the weights in buffers, without masters.
    fn bytes(&self) -> usize {
        let scales = self.codes.iter().map(|codes| &codes.scales);
        let values: usize = [&self.weights].into_iter().chain(&self.turns).chain(scales).map(Tensor::bytes).sum();
        values + self.gathered_codes.iter().map(CodeMemory::bytes).sum::<usize>()
    }
}

/// All gradients of a type, of `main_grad`.
fn grads_of(all: Tensor, layout: &FlatLayout, dtype: DType) -> Tensor {
    match dtype {
        DType::Bf16 => {
            let address = all.address + (layout.f32_gradients * DType::F32.size()) as u64;
            Tensor { address, shape: [layout.bf16_gradients].into(), dtype, ..all }
        }
        _ => all.view(0, [layout.f32_gradients]),
    }
}

/// # Panics
/// If no parameter has that memory: the layout lists the memories of all.
fn of_home(weights: &[Weights], home: ParamMemory) -> &Weights {
    match weights.iter().find(|weights| weights.home == home) {
        Some(weights) => weights,
        None => unreachable!("no parameter has its weights in {home:?}"),
    }
}
