//! A choice between two tensors.

mod host;

use super::{HasTensors, Operation, ensure, ensure_apart, ensure_values, tensors};
use crate::cuda::{KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_packs};
use crate::{DType, Result, Tensor};

/// `output = condition ? a : b`, elementwise. `output` may be `a` or `b`, and must not overlap with them otherwise.
/// Values are copied as they are, so any type will do, and NaN keeps its bits.
///
/// The values that are not chosen do nothing: a NaN among them does not reach `output`, as it would in a product
/// with 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Select {
    /// Decides for each element.
    pub condition: Condition,
    /// The values where the condition holds. Any shape and type.
    pub a: Tensor,
    /// The values where the condition does not hold. As many elements, of the same type.
    pub b: Tensor,
    /// As many elements, of the same type.
    pub output: Tensor,
}

/// The condition of a [`Select`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `(1)`, i32: the same for all elements. It holds if the number is not 0.
    Flag(Tensor),
    /// As many elements as the output, u8: one for each element. It holds where the byte is not 0.
    Mask(Tensor),
}

impl Condition {
    /// The flag or mask.
    pub(crate) fn tensor(self) -> Tensor {
        match self {
            Condition::Flag(tensor) | Condition::Mask(tensor) => tensor,
        }
    }
}

impl HasTensors for Condition {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        match self {
            Condition::Flag(tensor) | Condition::Mask(tensor) => each(tensor),
        }
    }
}

/// Fails unless a flag is one i32.
pub(super) fn check_flag(op: &'static str, flag: &Tensor) -> Result<()> {
    ensure(op, flag.dtype == DType::I32 && flag.elements() == 1, || {
        format!("`flag` is {:?} {}, needs one i32: 0 for no, any other number for yes", flag.shape, flag.dtype)
    })
}

impl Operation for Select {
    const NAME: &'static str = "select";

    fn check(&self) -> Result<()> {
        let Select { condition, a, b, output } = self;
        for (name, tensor) in [("b", b), ("output", output)] {
            ensure_values(Self::NAME, name, tensor, a.dtype, a.elements())?;
        }
        match condition {
            Condition::Flag(flag) => check_flag(Self::NAME, flag)?,
            Condition::Mask(mask) => {
                ensure_values(Self::NAME, "mask", mask, DType::U8, a.elements())?;
            }
        }
        ensure_apart(Self::NAME, ("condition", &condition.tensor()), output)?;
        let mut others = [("a", a), ("b", b)].into_iter().filter(|(_, input)| input.address != output.address);
        others.try_for_each(|input| ensure_apart(Self::NAME, input, output))
    }

    tensors! { read condition, a, b; write output }
}

impl KernelOperation for Select {
    const FILES: &'static [KernelFile] = &[kernel_file!("select.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.output.elements(), self.output.dtype);
        let load = match self.condition {
            // A pack of a mask is as many bytes as a pack of values has values.
            Condition::Mask(mask) if !mask.address.is_multiple_of(16) => LoadWidth::Scalar,
            _ => LoadWidth::of(count, [self.a, self.b, self.output]),
        };
        let (flag, mask) = match self.condition {
            Condition::Flag(flag) => (Some(flag), None),
            Condition::Mask(mask) => (None, Some(mask)),
        };
        let suffix = if load == LoadWidth::Scalar { "_scalar" } else { "" };
        let kernel = format!("select_{}{suffix}", 8 * dtype.size());
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(&kernel, grid, args! { flag, mask, self.a, self.b, self.output; U64: count })
    }
}
