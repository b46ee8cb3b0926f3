//! The network's regions, and the tensors that pass between them.

use std::fmt::{Display, Formatter};

use device::Tensor;
use graph_manager::{Instance, Policy, Result, TensorTree};

/// A piece of a step, of a microbatch if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    name: &'static str,
    layer: usize,
    microbatch: Option<usize>,
}

impl Region {
    pub fn of(name: &'static str, layer: usize, microbatch: usize) -> Region {
        Region { name, layer, microbatch: Some(microbatch) }
    }

    pub fn once(name: &'static str) -> Region {
        Region { name, layer: 0, microbatch: None }
    }
}

impl Display for Region {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.microbatch {
            Some(microbatch) => write!(f, "{} {} of microbatch {microbatch}", self.name, self.layer),
            None => f.write_str(self.name),
        }
    }
}

pub struct NetworkPolicy;

impl Policy for NetworkPolicy {
    type Region = Region;
    type Mode = &'static str;

    fn captured(&self, region: Region) -> std::result::Result<(), &'static str> {
        match region.name {
            "inputs" => Err("each microbatch has another address"),
            "zero" => Err("it only fills"),
            _ => Ok(()),
        }
    }

    fn instance(&self, region: Region) -> Option<Instance<Region>> {
        let microbatch = region.microbatch?;
        Some(Instance { microbatch, first: Region { microbatch: Some(0), ..region }, chunk: 0 })
    }
}

/// A microbatch on its way to the loss: `(batch, width)` each.
#[derive(Clone, Copy)]
pub struct Sample {
    pub input: Tensor,
    pub target: Tensor,
}

impl TensorTree for Sample {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Sample> {
        Ok(Sample { input: f("input", self.input)?, target: f("target", self.target)? })
    }
}
