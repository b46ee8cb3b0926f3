//! The parameters of a model: their names, their memory, their first values.

mod flat_layout;
mod spec;
mod tensor_shard;

use std::collections::HashMap;

use common::fnv1a;
use device::host::philox;
use device::{Area, DType, Device, Result, Shape, Tensor, bf16};
use rayon::prelude::*;

use flat_layout::FlatLayout;
pub use flat_layout::{Held, Shard};
pub use spec::{Init, ParamSpec, Twin};
pub use tensor_shard::{Cut, Piece};

/// A parameter in memory.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// What layers compute with. With a distributed optimizer the values of other ranks' parts come with the next forward.
    pub weight: Tensor,
    /// f32 master weights, in f32 those that layers compute with: all of the parameter, in its shape, or with a distributed
    /// optimizer the elements of `held`, flat.
    pub master: Tensor,
    /// f32 `main_grad`.
    pub grad: Tensor,
    /// What of it this rank updates.
    pub held: Held,
}

impl Param {
    /// What this rank updates of a tensor that has all of the parameter; flat.
    pub fn held_of(&self, whole: Tensor) -> Tensor {
        whole.view(self.held.first, [self.held.elements])
    }
}

/// A bucket in memory.
#[derive(Clone, Copy, Debug)]
pub struct BucketMemory {
    /// The first layer with parameters in it.
    pub layer: usize,
    /// Its range of `main_grad`, f32.
    pub grads: Tensor,
    /// Its range of what layers compute with.
    pub weights: Tensor,
    /// It has one parameter, which another stage has too.
    pub twin: Option<Twin>,
}

/// All parameters, each kind of memory in one flat buffer in order of declaration.
pub struct Params {
    /// What was declared.
    pub specs: Vec<ParamSpec>,
    /// Names of the model's parameters that other stages have.
    pub elsewhere: Vec<String>,
    params: Vec<Param>,
    by_name: HashMap<String, usize>,
    /// All of `main_grad`, f32, flat.
    pub grads: Tensor,
    /// All of what layers compute with, flat.
    weights: Tensor,
    layout: FlatLayout,
    _areas: Vec<Area>,
}

impl Params {
    /// Allocates weights and gradients, in buckets of at least `bucket_bytes` of gradients, and fills the weights.
    /// `shard` is the part of each bucket that this rank has master weights of.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        specs: Vec<ParamSpec>,
        compute: DType,
        seed: u64,
        bucket_bytes: usize,
        shard: Shard,
    ) -> Result<Params> {
        let layout = FlatLayout::new(&specs, bucket_bytes, shard);
        let all = Params::placed(device, specs, layout, compute, true)?;
        device.zero(&all.grads)?;
        if !device.is_dry() {
            for index in 0..all.specs.len() {
                all.set(device, index, &initial(&all.specs[index], seed))?;
            }
        }
        Ok(all)
    }

    /// Allocates weights alone, for a model that is not trained; all are zero until they are [set](Params::set).
    ///
    /// # Errors
    /// Out of memory.
    pub fn without_gradients(device: &Device, specs: Vec<ParamSpec>, compute: DType) -> Result<Params> {
        let layout = FlatLayout::new(&specs, usize::MAX, Shard::whole());
        Params::placed(device, specs, layout, compute, false)
    }

    fn placed(
        device: &Device,
        specs: Vec<ParamSpec>,
        layout: FlatLayout,
        compute: DType,
        gradients: bool,
    ) -> Result<Params> {
        let total = layout.total;
        let mut areas = Vec::new();
        let mut flat = |name, elements, dtype| device.allocate_tensor(&mut areas, name, [elements], dtype);
        let weights = flat("weights", total, compute)?;
        let masters = match compute {
            DType::F32 => None, // the weights themselves
            _ => Some(flat("master weights", layout.held_elements(), DType::F32)?),
        };
        let grads = match gradients {
            true => flat("main_grad", total, DType::F32)?,
            false => device.virtual_tensor("main_grad", [total], DType::F32), // an address that is refused if it is used
        };
        let place = |((spec, &offset), &held): ((&ParamSpec, &usize), &Held)| {
            let weight = weights.view(offset, spec.shape);
            let shape = if layout.shard.is_part() { Shape::new(&[held.elements]) } else { spec.shape };
            let master = masters.map_or(weight.view(held.first, shape), |masters| masters.view(held.at, shape));
            Param { weight, master, grad: grads.view(offset, spec.shape), held }
        };
        let params = specs.iter().zip(&layout.offsets).zip(&layout.held).map(place).collect();
        device.zero(&weights)?;
        masters.map_or(Ok(()), |masters| device.zero(&masters))?;
        let by_name = specs.iter().enumerate().map(|(i, spec)| (spec.name.clone(), i)).collect();
        Ok(Params { specs, elsewhere: Vec::new(), params, by_name, grads, weights, layout, _areas: areas })
    }

    /// Overwrites a parameter, compute copy and what is held here of the master weights, with f32 values of its stored
    /// shape.
    ///
    /// # Errors
    /// Another number of values.
    pub fn set(&self, device: &Device, index: usize, values: &[f32]) -> Result<()> {
        let Param { weight, master, held, .. } = self.params[index];
        if weight.dtype != DType::Bf16 {
            return device.upload(&weight, values);
        }
        let rounded: Vec<bf16> = values.par_iter().map(|&x| bf16::from_f32(x)).collect();
        device.upload(&weight, &rounded)?;
        if held.elements == 0 {
            return Ok(());
        }
        device.upload(&master, &values[held.first..held.first + held.elements])
    }

    /// The parameter of that name.
    ///
    /// # Panics
    /// If the model declared none: layers ask for what the same file declares.
    pub fn get(&self, name: &str) -> Param {
        match self.by_name.get(name) {
            Some(&index) => self.params[index],
            None => panic!("the model declares no parameter `{name}`"),
        }
    }

    /// All parameters with what was declared of them.
    pub fn iter(&self) -> impl Iterator<Item = (&ParamSpec, &Param)> {
        self.specs.iter().zip(&self.params)
    }

    /// The buckets, in the order backward completes them: from the last layer to the first.
    pub fn buckets(&self) -> impl Iterator<Item = BucketMemory> {
        self.layout.buckets.iter().map(|bucket| BucketMemory {
            layer: bucket.layer,
            grads: self.grads.view(bucket.start, [bucket.elements]),
            weights: self.weights.view(bucket.start, [bucket.elements]),
            twin: bucket.twin,
        })
    }

    /// The part of each bucket that this rank updates.
    pub fn shard(&self) -> Shard {
        self.layout.shard
    }

    /// Elements of a flat buffer of all that this rank updates, such as a moment.
    pub fn held_elements(&self) -> usize {
        self.layout.held_elements()
    }

    /// The parts of `main_grad` that belong to chosen parameters, with their layers; neighbours of one layer are one.
    pub fn grad_ranges(&self, chosen: impl Fn(&ParamSpec) -> bool) -> Vec<(usize, Tensor)> {
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new(); // layer, first element, end
        let mut joins = false;
        for (spec, &offset) in self.specs.iter().zip(&self.layout.offsets) {
            if chosen(spec) {
                let end = offset + spec.shape.elements();
                match ranges.last_mut().filter(|(layer, ..)| joins && *layer == spec.layer) {
                    Some(range) => range.2 = end,
                    None => ranges.push((spec.layer, offset, end)),
                }
            }
            joins = chosen(spec);
        }
        ranges.into_iter().map(|(layer, first, end)| (layer, self.grads.view(first, [end - first]))).collect()
    }

    /// What a parameter has of `flat`, which has [`Params::held_elements`]; in the shape of its master weights.
    pub fn part_of(&self, flat: Tensor, index: usize) -> Tensor {
        let Param { master, held, .. } = self.params[index];
        flat.view(held.at, master.shape)
    }

    /// Bytes of the weights layers compute with, and of the master weights where these are others.
    pub fn weight_bytes(&self) -> (usize, Option<usize>) {
        let masters = (self.weights.dtype != DType::F32).then(|| self.held_elements() * DType::F32.size());
        (self.weights.bytes(), masters)
    }

    /// Number of real parameters, padding not counted.
    pub fn count(&self) -> usize {
        self.specs.iter().map(|spec| spec.shape.elements() / spec.shape.sizes()[0] * spec.rows).sum()
    }
}

/// First values of a parameter.
fn initial(spec: &ParamSpec, seed: u64) -> Vec<f32> {
    let stream = fnv1a(spec.name.bytes());
    match spec.init {
        Init::Constant(constant) => spec.stored(|_| constant),
        Init::Normal(std) => spec.stored(|index| std * philox::normal(seed, stream, index as u64)),
    }
}
