//! The memory of weights with 8-bit products: their copies, and the tensors that belong to their layers.

use device::ops::{Fp8Matrix, QuantizeSource, Scale};
use device::{Area, DType, Device, Result, Shape, Tensor};

use super::counts::{CountCells, Fp8Counts};
use super::recipe::{Fp8, Fp8Recipe, Made, Scaling};
use super::scale_state::{SCALE_STRIDE, ScaleCell, ScaleState};
use crate::params::{Param, ParamSpec};

/// The memory of all 8-bit weights of a rank.
pub(crate) struct Fp8Memory {
    pub(crate) params: Vec<Option<Fp8Param>>,
    /// That of delayed scales; `None` if there are none.
    pub(crate) scales: Option<ScaleState>,
    /// Counts of losses; `None` without 8-bit weights.
    pub(crate) counts: Option<Fp8Counts>,
    /// The scales of all weights, flat; `None` without 8-bit weights.
    weight_scales: Option<Tensor>,
    areas: Vec<Area>,
}

/// The source of the 8-bit copies of a weight.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each weight, and what is copied need not be allocated")]
pub enum CopySource {
    /// Copies are made of the weight.
    Values(QuantizeSource),
    /// `(out, in)`: the ranks that divide the weight have quantised their parts. All parts were gathered here.
    Gathered(Tensor),
}

/// The 8-bit copies of a weight `(out, in)`, and the tensors of the weight's layer.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Param {
    /// The recipe of the weight's products.
    pub fp8: Fp8,
    /// The source of the copies.
    pub source: CopySource,
    /// The time at which the copies are made.
    pub made: Made,
    /// The index of the weight's first scale among the scales of all weights.
    scales_start: usize,
    /// `(out, in)`, for the output.
    pub rows: Fp8Matrix,
    /// `(in, out)`, for the input gradient. One scale is that of `rows`, those of blocks are the same, transposed, and those of
    /// rows are its own.
    pub columns: Fp8Matrix,
    /// The layer's input; `None` if no scale is delayed.
    pub input: Option<ScaleCell>,
    /// The gradient of the layer's output; `None` if no scale is delayed.
    pub grad_output: Option<ScaleCell>,
    /// Counts of the values that the copies lose.
    pub counts: CountCells,
}

impl Fp8Memory {
    /// Allocates the 8-bit memory of `params`; nothing for parameters without 8-bit products. `made` says of each when
    /// its copies are made.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn allocate(
        device: &Device,
        specs: &[ParamSpec],
        params: &[Param],
        made: impl Fn(usize) -> Made,
    ) -> Result<Fp8Memory> {
        let all: Vec<(&ParamSpec, Fp8)> = specs.iter().filter_map(|spec| Some((spec, spec.fp8?))).collect();
        let mut areas = Vec::new();
        let Some((_, first)) = all.first() else {
            let params = vec![None; specs.len()];
            return Ok(Fp8Memory { params, scales: None, counts: None, weight_scales: None, areas });
        };
        let mut flat =
            |name, shape: &[usize], dtype| device.allocate_tensor(&mut areas, name, Shape::new(shape), dtype);
        let places = CopyPlaces::of(specs, made);
        let rows = flat("8-bit weights", &[places.elements], DType::F8E4M3)?;
        let columns = flat("8-bit weights, transposed", &[places.elements], DType::F8E4M3)?;
        let scales =
            all.iter().map(|(spec, fp8)| scale_elements(fp8.recipe, spec.shape.rows(), spec.shape.last())).sum();
        let weight_scales = flat("scales of 8-bit weights", &[scales], DType::F32)?;
        for tensor in [rows, columns, weight_scales] {
            device.zero(&tensor)?;
        }
        let scales = match first.recipe.keeps_magnitudes() {
            true => Some(ScaleState::allocate(device, &mut areas, &all)?),
            false => None,
        };
        let counts = Fp8Counts::allocate(device, &mut areas, all.len())?;
        let (mut index, mut scale_start) = (0, 0);
        let param = |((spec, param), &(start, made)): ((&ParamSpec, &Param), &(usize, Made))| {
            let fp8 = spec.fp8?;
            let (out, input) = (spec.shape.rows(), spec.shape.last());
            let [rows_scale, columns_scale] = scales_of(fp8.recipe, &weight_scales, scale_start, out, input);
            let param = Fp8Param {
                fp8,
                // The copies are those of the 16-bit weights, whether such weights exist or not.
                source: match (spec.dtype, param.weight.dtype) {
                    (_, gathered) if gathered.is_fp8() => CopySource::Gathered(param.weight),
                    (DType::Bf16, DType::F32) => CopySource::Values(QuantizeSource::Rounded(param.weight)),
                    _ => CopySource::Values(QuantizeSource::Stored(param.weight)),
                },
                made,
                scales_start: scale_start,
                // What was gathered for a layer is there while the layer runs.
                rows: match made {
                    Made::ForEachUse if param.weight.dtype.is_fp8() => {
                        Fp8Matrix { values: param.weight, scale: rows_scale }
                    }
                    _ => Fp8Matrix { values: rows.view(start, [out, input]), scale: rows_scale },
                },
                columns: Fp8Matrix { values: columns.view(start, [input, out]), scale: columns_scale },
                input: scales.as_ref().map(|scales| scales.cell(2 * index)),
                grad_output: scales.as_ref().map(|scales| scales.cell(2 * index + 1)),
                counts: counts.of(index),
            };
            index += 1;
            scale_start += scale_elements(fp8.recipe, out, input);
            Some(param)
        };
        let params = specs.iter().zip(params).zip(&places.starts).map(param).collect();
        Ok(Fp8Memory { params, scales, counts: Some(counts), weight_scales: Some(weight_scales), areas })
    }

    /// The scales of weights that lie next to each other, each with one scale.
    pub(crate) fn scales_of(&self, params: &[Fp8Param]) -> Option<Tensor> {
        let (first, last) = (params.first()?, params.last()?);
        let end = last.scales_start + SCALE_STRIDE;
        Some(self.weight_scales?.view(first.scales_start, [end - first.scales_start]))
    }

    /// Bytes of all 8-bit memory.
    pub(crate) fn bytes(&self) -> usize {
        self.areas.iter().map(Area::bytes).sum()
    }
}

/// The places of copies in the memory of all copies, in elements.
struct CopyPlaces {
    /// By parameter: the first element, and when the copy is made.
    starts: Vec<(usize, Made)>,
    elements: usize,
}

impl CopyPlaces {
    /// Copies for whole steps come first. Behind them the layers share the memory of those for each use.
    fn of(specs: &[ParamSpec], made: impl Fn(usize) -> Made) -> CopyPlaces {
        let size = |spec: &ParamSpec| spec.fp8.map_or(0, |_| spec.shape.elements().next_multiple_of(ALIGNMENT));
        let of_all = specs.iter().enumerate().map(|(index, spec)| (spec.layer, size(spec), made(index)));
        let kept: usize = of_all.clone().filter(|of| of.2 != Made::ForEachUse).map(|of| of.1).sum();
        let (mut starts, mut elements) = (Vec::with_capacity(specs.len()), kept);
        let (mut end, mut shared, mut last) = (0, kept, None);
        for (layer, size, made) in of_all {
            if last.replace(layer) != Some(layer) {
                shared = kept;
            }
            let next = if made == Made::ForEachUse { &mut shared } else { &mut end };
            starts.push((*next, made));
            *next += size;
            elements = elements.max(shared);
        }
        CopyPlaces { starts, elements }
    }
}

/// The numbers that the scales of both copies of a weight `(out, in)` take: a multiple of [`SCALE_STRIDE`].
fn scale_elements(recipe: Fp8Recipe, out: usize, input: usize) -> usize {
    match recipe.scaling() {
        Scaling::Tensor => SCALE_STRIDE,
        Scaling::Rows => out.next_multiple_of(SCALE_STRIDE) + input.next_multiple_of(SCALE_STRIDE),
        Scaling::Blocks => block_elements(out, input) + block_elements(input, out),
    }
}

/// The scales of the copies `(out, in)` and `(in, out)` of a weight. They lie in `all` from `start` on.
fn scales_of(recipe: Fp8Recipe, all: &Tensor, start: usize, out: usize, input: usize) -> [Scale; 2] {
    match recipe.scaling() {
        Scaling::Tensor => [Scale::Tensor(all.view(start, [1])); 2],
        Scaling::Rows => {
            let of_columns = start + out.next_multiple_of(SCALE_STRIDE);
            [Scale::Rows(all.view(start, [out])), Scale::Rows(all.view(of_columns, [input]))]
        }
        Scaling::Blocks => {
            let of_columns = start + block_elements(out, input);
            [
                Scale::Blocks(all.view(start, Scale::block_shape(out, input))),
                Scale::Blocks(all.view(of_columns, Scale::block_shape(input, out))),
            ]
        }
    }
}

/// The number of scales by block, with rows of scales padded to a multiple of [`SCALE_STRIDE`].
fn block_elements(rows: usize, columns: usize) -> usize {
    Scale::block_shape(rows, columns).iter().product()
}

/// Weights begin at multiples of so many elements, and bytes.
const ALIGNMENT: usize = 256;
