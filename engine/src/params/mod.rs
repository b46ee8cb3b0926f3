//! The parameters of a model: their names, their memory, their first values.

mod dense_block;
mod flat_layout;
mod spec;
mod tensor_shard;

use std::collections::HashMap;

use common::fnv1a;
use device::host::philox;
use device::{Area, DType, Device, Result, Shape, Tensor, bf16};
use rayon::prelude::*;

use crate::fp8::{Fp8Memory, Fp8Param, ScaleState};

pub use dense_block::DenseBlock;
pub(crate) use flat_layout::ALIGNMENT;
use flat_layout::{Bucket, FlatLayout, ParamOffsets};
pub use flat_layout::{OptimizerShard, OwnedRange};
pub use spec::{Init, ParamSpec, TiedCopy};
pub use tensor_shard::TensorShard;

/// A parameter in memory.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The weights that layers read, in the parameter's shape and type. With a distributed optimizer the elements of other
    /// ranks are gathered by the next step's forward; until then only the owned ones are current.
    pub weight: Tensor,
    /// The master weights, f32. For an f32 parameter they are the same memory as `weight`. They have the parameter's shape,
    /// or with a distributed optimizer the owned elements, flat.
    pub master: Tensor,
    /// `main_grad`, f32, in the parameter's shape.
    pub grad: Tensor,
    /// The elements that this rank updates.
    pub owned: OwnedRange,
    /// Set where its products have 8-bit factors.
    pub fp8: Option<Fp8Param>,
}

impl Param {
    /// The elements that this rank updates, of a tensor with all of the parameter's elements; flat.
    pub fn owned_of(&self, whole: Tensor) -> Tensor {
        whole.view(self.owned.first, [self.owned.elements])
    }
}

/// A bucket in memory. Its gradients are reduced, and its weights gathered, at once.
#[derive(Clone, Copy, Debug)]
pub struct BucketMemory {
    /// The first layer with parameters in it.
    pub layer: usize,
    /// Its range of `main_grad`, f32, flat.
    pub grads: Tensor,
    /// Its range of the weights that layers read, flat.
    pub weights: Tensor,
    /// Set where the bucket has one parameter, of which another stage has a copy.
    pub tied: Option<TiedCopy>,
}

/// All parameters of a rank. Each kind of memory is one flat buffer in order of declaration: `main_grad`, and for each type
/// of weights the weights and, unless the type is f32, the master weights.
pub struct Params {
    /// The declarations.
    pub specs: Vec<ParamSpec>,
    params: Vec<Param>,
    by_name: HashMap<String, usize>,
    /// All of `main_grad`, f32, flat.
    pub grads: Tensor,
    weights: Vec<TypedWeights>,
    fp8: Fp8Memory,
    layout: FlatLayout,
    _areas: Vec<Area>,
}

/// The weights of one type.
#[derive(Clone, Copy)]
struct TypedWeights {
    /// All of them, flat.
    weights: Tensor,
    /// The f32 master weights that this rank owns, flat; `None` for f32, where the weights are their own masters.
    masters: Option<Tensor>,
}

impl Params {
    /// Allocates weights and gradients, in buckets of at least `bucket_bytes` of gradients, and fills the weights with
    /// their first values. `shard` is the part of each bucket that this rank has master weights of.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        specs: Vec<ParamSpec>,
        seed: u64,
        bucket_bytes: usize,
        shard: OptimizerShard,
    ) -> Result<Params> {
        let layout = FlatLayout::new(&specs, bucket_bytes, shard);
        let all = Params::allocate(device, specs, layout, true)?;
        device.zero(&all.grads)?;
        if !device.is_dry() {
            for index in 0..all.specs.len() {
                all.set(device, index, &first_values(&all.specs[index], seed))?;
            }
        }
        Ok(all)
    }

    /// Allocates weights alone, for a model that is not trained. They are zero until they are [set](Params::set).
    ///
    /// # Errors
    /// Out of memory.
    pub fn without_gradients(device: &Device, specs: Vec<ParamSpec>) -> Result<Params> {
        let layout = FlatLayout::new(&specs, usize::MAX, OptimizerShard::whole());
        Params::allocate(device, specs, layout, false)
    }

    fn allocate(device: &Device, specs: Vec<ParamSpec>, layout: FlatLayout, gradients: bool) -> Result<Params> {
        let mut areas = Vec::new();
        let mut flat = |name, elements, dtype| device.allocate_tensor(&mut areas, name, [elements], dtype);
        let mut weights = Vec::new();
        for &(dtype, elements) in &layout.by_dtype {
            let of_type = flat("weights", elements, dtype)?;
            let masters = match dtype {
                DType::F32 => None,
                _ => Some(flat("master weights", elements / layout.shard.ranks, DType::F32)?),
            };
            weights.push(TypedWeights { weights: of_type, masters });
        }
        let grads = match gradients {
            true => flat("main_grad", layout.total, DType::F32)?,
            false => device.virtual_tensor("main_grad", [layout.total], DType::F32), // an address that no operation may use
        };
        for TypedWeights { weights, masters } in &weights {
            device.zero(weights)?;
            masters.map_or(Ok(()), |masters| device.zero(&masters))?;
        }
        // A model that is not trained computes in 16 bits.
        let fp8 = Fp8Memory::allocate(device, if gradients { &specs } else { &[] })?;
        let param = |(index, (spec, place)): (usize, (&ParamSpec, &ParamOffsets))| {
            let typed = of_type(&weights, spec.dtype);
            let weight = typed.weights.view(place.weight, spec.shape);
            let owned = place.owned;
            let shape = if layout.shard.is_part() { Shape::new(&[owned.elements]) } else { spec.shape };
            let master = match typed.masters {
                Some(masters) => masters.view(place.master, shape),
                None => weight.view(owned.first, shape),
            };
            let fp8 = fp8.params.get(index).copied().flatten();
            Param { weight, master, grad: grads.view(place.grad, spec.shape), owned, fp8 }
        };
        let params = specs.iter().zip(&layout.params).enumerate().map(param).collect();
        let by_name = specs.iter().enumerate().map(|(i, spec)| (spec.name.clone(), i)).collect();
        Ok(Params { specs, params, by_name, grads, weights, fp8, layout, _areas: areas })
    }

    /// Overwrites a parameter with f32 values of its stored shape: the weights that layers read and the master weights.
    ///
    /// # Errors
    /// Another number of values.
    pub fn set(&self, device: &Device, index: usize, values: &[f32]) -> Result<()> {
        let Param { weight, master, owned, .. } = self.params[index];
        if weight.dtype != DType::Bf16 {
            return device.upload(&weight, values);
        }
        let rounded: Vec<bf16> = values.par_iter().map(|&x| bf16::from_f32(x)).collect();
        device.upload(&weight, &rounded)?;
        if owned.elements == 0 {
            return Ok(());
        }
        device.upload(&master, &values[owned.first..owned.first + owned.elements])
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

    /// All parameters with their declarations.
    pub fn iter(&self) -> impl Iterator<Item = (&ParamSpec, &Param)> {
        self.specs.iter().zip(&self.params)
    }

    /// The buckets, in the order backward completes them: from the last layer to the first.
    pub fn buckets(&self) -> impl Iterator<Item = BucketMemory> {
        let memory = |bucket: &Bucket| BucketMemory {
            layer: bucket.layer,
            grads: self.grads.view(bucket.start, [bucket.elements]),
            weights: of_type(&self.weights, bucket.dtype).weights.view(bucket.weights_start, [bucket.elements]),
            tied: bucket.tied,
        };
        self.layout.buckets.iter().map(memory)
    }

    /// The part of each bucket that this rank updates.
    pub fn optimizer_shard(&self) -> OptimizerShard {
        self.layout.shard
    }

    /// The ranges of `main_grad` that belong to the chosen parameters, each with its layer. Parameters of one layer that are
    /// neighbours form one range.
    pub fn grad_ranges(&self, chosen: impl Fn(&ParamSpec) -> bool) -> Vec<(usize, Tensor)> {
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new(); // layer, first element, end
        let mut joins = false;
        for (spec, place) in self.specs.iter().zip(&self.layout.params) {
            if chosen(spec) {
                let end = place.grad + spec.shape.elements();
                match ranges.last_mut().filter(|(layer, ..)| joins && *layer == spec.layer) {
                    Some(range) => range.2 = end,
                    None => ranges.push((spec.layer, place.grad, end)),
                }
            }
            joins = chosen(spec);
        }
        ranges.into_iter().map(|(layer, first, end)| (layer, self.grads.view(first, [end - first]))).collect()
    }

    /// The state of delayed scaling; `None` if nothing is scaled so.
    pub fn delayed_scales(&self) -> Option<&ScaleState> {
        self.fp8.scales.as_ref()
    }

    /// Bytes of 8-bit copies of weights, and of scales.
    pub fn fp8_bytes(&self) -> usize {
        self.fp8.bytes()
    }

    /// Bytes of the weights that layers read.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(|typed| typed.weights.bytes()).sum()
    }

    /// Bytes of the master weights that are memory of their own; 0 where all parameters are f32.
    pub fn master_bytes(&self) -> usize {
        self.weights.iter().filter_map(|typed| typed.masters).map(|masters| masters.bytes()).sum()
    }
}

/// # Panics
/// If no parameter has that type: the layout lists the types of all.
fn of_type(weights: &[TypedWeights], dtype: DType) -> TypedWeights {
    match weights.iter().find(|typed| typed.weights.dtype == dtype) {
        Some(typed) => *typed,
        None => unreachable!("no parameter has type {dtype}"),
    }
}

fn first_values(spec: &ParamSpec, seed: u64) -> Vec<f32> {
    let stream = fnv1a(spec.name.bytes());
    match spec.init {
        Init::Constant(constant) => spec.stored_values(|_| constant),
        Init::Normal(std) => spec.stored_values(|index| std * philox::normal(seed, stream, index as u64)),
    }
}
