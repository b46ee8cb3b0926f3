//! Rows that go straight to their places on the ranks of their experts, and back.
//!
//! Experts are numbered over all ranks: rank `r` of a group has the `r`-th of equal parts of them. Each rank sorts its own
//! pairs by the experts of all (`ExpertRows`), so its rows for another rank lie together. The ranks
//! gather their offsets. From these each knows the number of rows between any two, and where a row lies among the rows of its
//! expert: first those of rank 0, and those of a rank in its own order. So a row is moved once, and sorted once.

use crate::ops::{HasTensors, ensure, ensure_apart, ensure_dtype, ensure_float, ensure_shape, tensors};
use crate::{DType, Result, Tensor};

/// A direction of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowsWay {
    /// From the tokens of a rank to the ranks of their experts. The input is `(tokens, width)`, and each token has as many
    /// pairs. The output is `(rows, width)`, in the order of this rank's experts; rows without a pair are not written.
    ToExperts,
    /// Back. The input is `(rows, width)`, the output `(pairs, width)`, in the order of this rank's pairs by the experts of
    /// all ranks; rows of dropped pairs are not written. A pair whose row was left out gets values without a meaning: see
    /// [`PlaceRows::beyond`](super::PlaceRows::beyond).
    ToTokens,
}

/// The rows between ranks with different experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowsOfRanks {
    /// The direction.
    pub way: RowsWay,
    /// `(ranks, experts of all + 1)`, i32: the offsets of all ranks (`ExpertRows::offsets`).
    pub offsets: Tensor,
    /// `(experts, ranks)`, i32: see [`PlaceRows::places`](super::PlaceRows::places).
    pub places: Tensor,
    /// `(pairs)`, i32: this rank's pairs (`ExpertRows::pairs`), by the experts of all ranks.
    pub pairs: Tensor,
}

impl RowsOfRanks {
    /// The name of the transfer in errors, reports and traces.
    pub fn name(&self) -> &'static str {
        match self.way {
            RowsWay::ToExperts => "rows_to_experts",
            RowsWay::ToTokens => "rows_to_tokens",
        }
    }

    /// The experts of this rank.
    pub fn experts(&self) -> usize {
        self.places.shape.rows()
    }

    /// Bytes of a row.
    pub(crate) fn line(input: &Tensor) -> usize {
        input.shape.last() * input.dtype.size()
    }

    /// The most rows that this rank's experts have.
    pub(crate) fn bound(&self, input: &Tensor, output: &Tensor) -> usize {
        match self.way {
            RowsWay::ToExperts => output.shape.rows(),
            RowsWay::ToTokens => input.shape.rows(),
        }
    }

    pub(crate) fn read(&self) -> [Tensor; 3] {
        [self.offsets, self.places, self.pairs]
    }

    pub(crate) fn check(&self, ranks: usize, input: &Tensor, output: &Tensor) -> Result<()> {
        let name = self.name();
        let numbers = [("offsets", &self.offsets), ("places", &self.places), ("pairs", &self.pairs)];
        numbers.iter().try_for_each(|(of, tensor)| ensure_dtype(name, of, tensor, DType::I32))?;
        check_places(name, ranks, &self.offsets, &self.places)?;
        match input.dtype.is_fp8() {
            true => ensure_dtype(name, "output", output, input.dtype)?,
            false => ensure_float(name, &[("input", *input), ("output", *output)])?,
        }
        ensure_apart(name, ("input", input), output)?;
        ensure(name, self.bound(input, output) > 0, || "there is no room for rows".into())?;
        let (width, pairs) = (input.shape.last(), self.pairs.elements());
        ensure(name, (width * input.dtype.size()).is_multiple_of(4), || {
            format!("rows of {width} values of {}: their bytes must be a multiple of 4", input.dtype)
        })?;
        ensure(name, output.shape.last() == width, || {
            format!("rows of `output` have {} values, needs {width}", output.shape.last())
        })?;
        let of_pairs = match self.way {
            RowsWay::ToExperts => input.shape.rows(),
            RowsWay::ToTokens => output.shape.rows(),
        };
        let fits = match self.way {
            RowsWay::ToExperts => of_pairs > 0 && pairs.is_multiple_of(of_pairs),
            RowsWay::ToTokens => of_pairs == pairs,
        };
        ensure(name, fits, || format!("{pairs} pairs do not fit {of_pairs} rows"))
    }
}

impl HasTensors for RowsOfRanks {
    tensors! { offsets, places, pairs }
}

pub(super) fn check_places(op: &'static str, ranks: usize, offsets: &Tensor, places: &Tensor) -> Result<()> {
    let experts = places.shape.rows();
    ensure(op, experts > 0 && ranks > 0, || "there is no expert".into())?;
    ensure_shape(op, "places", places, &[experts, ranks])?;
    ensure_shape(op, "offsets", offsets, &[ranks, ranks * experts + 1])
}
