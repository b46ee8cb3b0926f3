//! Sums of columns that operations leave in parts.

use std::sync::Arc;

use super::{Accesses, HasTensors, Operation, ensure_dtype, ensure_elements, tensors};
use crate::{DType, Result, Tensor};

/// A sum of columns in parts, and the output for the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialColumns {
    /// `(parts, columns)`, f32.
    pub partial: Tensor,
    /// `(columns)`, f32.
    pub output: Tensor,
}

impl HasTensors for PartialColumns {
    tensors! { partial, output }
}

/// `output (+)= sum of partial over its parts`, for each of several sums. Parts are added in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct AddPartialColumns {
    /// The sums.
    pub sums: Arc<[PartialColumns]>,
    /// Add to the outputs instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for AddPartialColumns {
    const NAME: &'static str = "add_partial_columns";

    fn check(&self) -> Result<()> {
        for PartialColumns { partial, output } in self.sums.iter() {
            ensure_dtype(Self::NAME, "partial", partial, DType::F32)?;
            ensure_dtype(Self::NAME, "output", output, DType::F32)?;
            ensure_elements(Self::NAME, "output", output, partial.shape.last())?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let outputs = || self.sums.iter().map(|sum| sum.output);
        let base = Accesses::new(self.sums.iter().map(|sum| sum.partial), outputs());
        if self.accumulate { base.reads(outputs()) } else { base }
    }

    tensors! { sums }
}
