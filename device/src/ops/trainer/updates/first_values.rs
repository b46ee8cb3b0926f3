//! The values that a parameter begins with.

mod host;

use crate::cuda::{Arg, KernelFile, KernelOperation, Queue, kernel_file, over_packs};
use crate::ops::{Operation, ensure, ensure_apart, ensure_dtype, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// How a parameter's first values are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform between minus this bound and the bound.
    Uniform(f32),
    /// The same value everywhere.
    Constant(f32),
}

/// `output[i]` = the first value of element `first + i / row * pitch + i % row` of the whole parameter. It is a function of
/// (seed, stream, element), with the same bits on the host and on every GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstValues {
    /// Any shape: a dense box of the parameter's elements. f32 or bf16; or u16, the remainders that `rounded` lacks, see
    /// [`split_master`](crate::ops::split_master).
    pub output: Tensor,
    /// The same values in bf16, as many. `output` is f32 (round to nearest even) or has remainders (ties away from 0).
    pub rounded: Option<Tensor>,
    /// The values' distribution.
    pub distribution: Distribution,
    /// The run's seed.
    pub seed: u64,
    /// The parameter's own stream of numbers.
    pub stream: u64,
    /// The box's first element, by its index in the whole.
    pub first: u64,
    /// Consecutive elements of a row of the box.
    pub row: usize,
    /// Elements of the whole from one row of the box to the next.
    pub pitch: usize,
}

impl FirstValues {
    /// A value everywhere.
    pub fn constant(value: f32, output: Tensor, rounded: Option<Tensor>) -> FirstValues {
        let (distribution, row) = (Distribution::Constant(value), output.elements());
        FirstValues { output, rounded, distribution, seed: 0, stream: 0, first: 0, row, pitch: row }
    }

    /// The index in the whole of the box's element `at`.
    pub(crate) fn element(&self, at: usize) -> u64 {
        self.first + (at / self.row * self.pitch + at % self.row) as u64
    }
}

impl Operation for FirstValues {
    const NAME: &'static str = "first_values";

    fn check(&self) -> Result<()> {
        let has_remainders = self.output.dtype == DType::U16;
        match has_remainders {
            true => ensure(Self::NAME, self.rounded.is_some(), || "remainders need `rounded`".into())?,
            false => ensure_float(Self::NAME, &[("output", self.output)])?,
        }
        ensure(Self::NAME, (1..=self.pitch).contains(&self.row), || {
            format!("a row has {} elements, and the next begins after {}", self.row, self.pitch)
        })?;
        let Some(rounded) = &self.rounded else { return Ok(()) };
        if !has_remainders {
            ensure_dtype(Self::NAME, "output", &self.output, DType::F32)?;
        }
        ensure_values(Self::NAME, "rounded", rounded, DType::Bf16, self.output.elements())?;
        ensure_apart(Self::NAME, ("output", &self.output), rounded)
    }

    tensors! { write output, rounded }
}

impl KernelOperation for FirstValues {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/first_values.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.output.elements();
        let (output, remainders, rounded) = match self.output.dtype {
            DType::F32 => (Some(self.output), None, self.rounded),
            DType::U16 => (None, Some(self.output), self.rounded),
            _ => (None, None, Some(self.output)),
        };
        let (distribution, scale) = match self.distribution {
            Distribution::Uniform(bound) => (0, bound),
            Distribution::Normal(std) => (1, std),
            Distribution::Constant(value) => (2, value),
        };
        let sizes =
            [count as u64, self.seed, self.stream, self.first, self.row as u64, self.pitch as u64].map(Arg::U64);
        let arguments =
            [&[output, remainders, rounded].map(Arg::from)[..], &sizes, &[Arg::U32(distribution), Arg::F32(scale)]]
                .concat();
        queue.launch("first_values", over_packs(count, queue), &arguments)
    }
}
