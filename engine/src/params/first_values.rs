//! The first values of parameters: made on the device, each a function of (seed, name, element).

use std::ops::Range;

use device::ops::{FirstValues, Move};
use device::{Area, DType, Device, Result, Stream, Tensor};

use super::weight_memory::WeightMemory;
use super::{CodeMemory, Param, ParamSpec, Params};

impl Params {
    /// Fills parameters with first values, on a separate stream, and waits for the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_first(&self, device: &Device, indices: impl IntoIterator<Item = usize>, seed: u64) -> Result<()> {
        let stream = device.stream("first values");
        // Kept until all work is done.
        let mut passing = None;
        for index in indices {
            let spec = &self.specs[index];
            if let Some(codes) = self.params[index].codes {
                let passing = passing_area(device, &mut passing, &self.specs)?;
                set_first_codes(&stream, (spec, self.needed(index), codes), passing, seed)?;
                continue;
            }
            for part in self.first_parts(index) {
                let masters = self.params[index].master.dtype;
                let of_other_ranks = part.output.dtype == DType::Bf16 && masters == DType::U16;
                if self.is_on_host(part.output) || of_other_ranks {
                    let passing = passing_area(device, &mut passing, &self.specs)?;
                    set_first_by_way(&stream, (spec, &part), (passing, masters), seed)?;
                    continue;
                }
                for slab in spec.slabs.iter().flat_map(|slab| slab.within(part.stored.clone())) {
                    let within = |tensor: Tensor| tensor.view(slab.start - part.stored.start, [slab.elements()]);
                    let (output, rounded) = (within(part.output), part.rounded.map(within));
                    stream.submit(spec.init_slab(&slab, seed, output, rounded))?;
                }
            }
            self.params[index].fp8.map_or(Ok(()), |fp8| fp8.make_once(&stream))?;
        }
        device.synchronize()
    }

    /// The ranges of a parameter that have first values, each in one place.
    fn first_parts(&self, index: usize) -> Vec<FirstPart> {
        let Param { weight, master, owned_weight, owned, .. } = self.params[index];
        let (owned, all) = (owned.range(), weight.elements());
        let own = FirstPart { stored: owned.clone(), output: master, rounded: owned_weight };
        let of_weight = |stored: Range<usize>| {
            let output = weight.view(stored.start, [stored.len()]);
            FirstPart { stored, output, rounded: None }
        };
        let memory = self.layout.params[index].home.memory;
        let parts = match (self.layout.params[index].is_gathered, memory) {
            (true, _) => vec![own],
            (_, WeightMemory::Kept(DType::F32) | WeightMemory::Frozen(_)) => vec![of_weight(0..all)],
            // Masters are of the owned part alone.
            _ => vec![of_weight(0..owned.start), own, of_weight(owned.end..all)],
        };
        parts.into_iter().filter(|part| !part.stored.is_empty()).collect()
    }
}

/// The number of first values that are made at once, if the values go by way of passing memory.
const FIRST_VALUES: usize = 16 << 20;

/// The memory that first values pass through, allocated once.
fn passing_area<'a>(device: &Device, passing: &'a mut Option<Area>, specs: &[ParamSpec]) -> Result<&'a Area> {
    if passing.is_none() {
        let largest = specs.iter().map(|spec| spec.shape.elements()).max().unwrap_or(0);
        *passing = Some(device.allocate("first values", largest.min(FIRST_VALUES) * DType::F32.size())?);
    }
    match passing {
        Some(area) => Ok(area),
        None => unreachable!("it was allocated"),
    }
}

/// Makes first values by way of memory of the device, in the form that masters have: masters on the host, and the weights of
/// other ranks, which are rounded as masters with remainders are.
fn set_first_by_way(
    stream: &Stream,
    (spec, part): (&ParamSpec, &FirstPart),
    (passing, masters): (&Area, DType),
    seed: u64,
) -> Result<()> {
    for first in part.stored.clone().step_by(FIRST_VALUES) {
        let stored = first..part.stored.end.min(first + FIRST_VALUES);
        let within = |all: Tensor| all.view(first - part.stored.start, [stored.len()]);
        let here = passing.tensor("first values", 0, [stored.len()], masters);
        let output = within(part.output);
        match part.output.dtype {
            DType::Bf16 => fill(stream, (spec, &stored), (here, Some(output)), seed)?,
            _ => {
                fill(stream, (spec, &stored), (here, part.rounded.map(within)), seed)?;
                stream.submit(Move { input: here, output })?;
            }
        }
    }
    Ok(())
}

/// Fills a tensor, and the tensor's rounded copy if there is one, with the first values of some elements of a
/// parameter.
fn fill(
    stream: &Stream,
    (spec, stored): (&ParamSpec, &Range<usize>),
    (output, rounded): (Tensor, Option<Tensor>),
    seed: u64,
) -> Result<()> {
    // Padding is 0.
    stream.submit(FirstValues::constant(0.0, output, rounded))?;
    for slab in spec.slabs.iter().flat_map(|slab| slab.within(stored.clone())) {
        let within = |tensor: Tensor| tensor.view(slab.start - stored.start, [slab.elements()]);
        stream.submit(spec.init_slab(&slab, seed, within(output), rounded.map(within)))?;
    }
    Ok(())
}

/// Gives first values, in bf16 by way of passing memory, to the stored elements of a parameter that lie here as codes.
fn set_first_codes(
    stream: &Stream,
    (spec, elements, codes): (&ParamSpec, Range<usize>, CodeMemory),
    passing: &Area,
    seed: u64,
) -> Result<()> {
    for first in elements.clone().step_by(FIRST_VALUES) {
        let stored = first..elements.end.min(first + FIRST_VALUES);
        let here = passing.tensor("first values", 0, [stored.len()], DType::Bf16);
        fill(stream, (spec, &stored), (here, None), seed)?;
        codes.part(first - elements.start, stored.len()).submit(stream, here)?;
    }
    Ok(())
}

/// Stored elements of a parameter, and where the elements' first values go.
struct FirstPart {
    stored: Range<usize>,
    /// The masters, or weights without masters.
    output: Tensor,
    /// The weights of the masters.
    rounded: Option<Tensor>,
}
