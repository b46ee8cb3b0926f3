//! Operands: activations and output gradients, as the products of a linear layer read them.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, TransposeFp8};
use device::{Communicator, DType, Op, Shape, Tensor};
use graph_manager::Result;

use super::counts::CountCell;
use super::memory::Fp8Param;
use super::recipe::Scaling;
use super::scale_state::ScaleCell;
use crate::microbatch::adds_to_gradients;
use crate::step_policy::StepContext;
use crate::tile::Tile;

/// An activation `(rows, in)` or an output gradient `(rows, out)`, in the form that the products of a linear layer
/// read.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "layers hand a few on, by value, while a step is recorded")]
pub(crate) enum Operand {
    /// The tensor in 16 or 32 bits.
    Plain(Tensor),
    /// In 8 bits.
    Fp8 {
        /// `(rows, width)`, for the output or the input gradient.
        rows: Option<Fp8Matrix>,
        /// `(width, rows)`, for the weight gradient.
        columns: Option<Fp8Matrix>,
        /// The values not quantised, if adapters read such values.
        plain: Option<Tensor>,
    },
}

/// The wanted copies of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// For the output alone, or the input gradient alone.
    Rows,
    /// For the weight gradient alone.
    Columns,
    /// For both.
    Both,
}

impl Copies {
    /// The copies of a layer's input in forward. With `keeps`, backward keeps the copy that its weight gradient reads.
    /// Without it, backward makes the copy again.
    pub(crate) fn of_input(cx: &StepContext<'_>, keeps: bool) -> Copies {
        match keeps && cx.mode().trains() {
            true => Copies::Both,
            false => Copies::Rows,
        }
    }

    fn rows(self) -> bool {
        self != Copies::Columns
    }

    fn columns(self) -> bool {
        self != Copies::Rows
    }
}

impl Operand {
    /// The values that the weight gradient reads, if the operand stores such values.
    pub(crate) fn of_weight_gradient(&self) -> Option<Tensor> {
        match self {
            Operand::Plain(tensor) => Some(*tensor),
            Operand::Fp8 { columns, plain, .. } => columns.map(|columns| columns.values).or(*plain),
        }
    }

    /// The values not quantised.
    ///
    /// # Panics
    /// If they are in 8 bits alone: a mistake in the layer that made it.
    pub(crate) fn plain(&self) -> Tensor {
        match self {
            Operand::Plain(tensor) | Operand::Fp8 { plain: Some(tensor), .. } => *tensor,
            Operand::Fp8 { .. } => unreachable!("products of 16 bits have operands of 16 bits"),
        }
    }

    /// The operand with the values not quantised beside the 8-bit values.
    pub(crate) fn beside(self, values: Tensor) -> Operand {
        match self {
            Operand::Fp8 { rows, columns, .. } => Operand::Fp8 { rows, columns, plain: Some(values) },
            plain => plain,
        }
    }

    /// An operand of rows alone.
    pub(crate) fn of_rows(rows: Fp8Matrix) -> Operand {
        Operand::Fp8 { rows: Some(rows), columns: None, plain: None }
    }

    /// The operand's rows in 8 bits.
    ///
    /// # Panics
    /// If there are none: a mistake in the layer that made it.
    pub(crate) fn fp8_rows(&self) -> Fp8Matrix {
        match self {
            Operand::Fp8 { rows: Some(rows), .. } => *rows,
            _ => unreachable!("rows in 8 bits were made for this"),
        }
    }

    /// A tensor with the operand's rows, whatever the width and type.
    ///
    /// # Panics
    /// If there is only the transposed copy.
    pub(crate) fn rows(&self) -> &Tensor {
        match self {
            Operand::Plain(tensor) | Operand::Fp8 { plain: Some(tensor), .. } => tensor,
            Operand::Fp8 { rows: Some(rows), .. } => &rows.values,
            Operand::Fp8 { rows: None, .. } => unreachable!("a product reads the rows of its operand"),
        }
    }

    /// The part that weight gradients read, for a backward to keep: of a layer with adapters the values as they are.
    pub(crate) fn for_weight_gradient(self) -> Operand {
        match self {
            Operand::Fp8 { plain: Some(plain), .. } => Operand::Plain(plain),
            Operand::Fp8 { columns, .. } => Operand::Fp8 { rows: None, columns, plain: None },
            plain => plain,
        }
    }

    /// The transposed copy of a matrix `(..., width)` that has one scale and was gathered in 8 bits, with `rows` too if
    /// wanted.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn transposed(cx: &mut StepContext<'_>, rows: Fp8Matrix, copies: Copies) -> Result<Operand> {
        let Fp8Matrix { values, scale } = rows;
        let columns = cx.tensor("columns_8bit", [values.shape.last(), values.shape.rows()], values.dtype)?;
        cx.run(TransposeFp8 { input: values, output: columns })?;
        let columns = Some(Fp8Matrix { values: columns, scale });
        Ok(Operand::Fp8 { rows: copies.rows().then_some(rows), columns, plain: None })
    }

    /// A tile of the operand's rows. A scale of 8 bits is that of all rows.
    pub(crate) fn of_tile(self, tile: Tile) -> Operand {
        match self {
            Operand::Plain(whole) => Operand::Plain(tile.of(whole)),
            Operand::Fp8 { .. } => {
                let rows = self.fp8_rows();
                Operand::of_rows(Fp8Matrix { values: tile.of(rows.values), ..rows })
            }
        }
    }

    /// Quantises a tile of rows into `rows`, the copy of all rows, whose scale is delayed.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn quantize_tile(
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        rows: Fp8Matrix,
        tile: Tile,
        quantize_as: QuantizeAs<'_>,
    ) -> Result<()> {
        quantize_as.one_scale(cx, source)?;
        let QuantizeAs { cell, counts, sums, again, .. } = quantize_as;
        let rows = Fp8Matrix { values: tile.of(rows.values), ..rows };
        let amax = cell.filter(|_| !again).map(|cell| cell.amax);
        let accumulate = sums.is_some() && (adds_to_gradients(cx) || !tile.is_first());
        cx.run(Quantize { source, rows: Some(rows), columns: None, amax, sums, accumulate })?;
        if again { Ok(()) } else { counts.count(cx, source, rows) }
    }

    /// In 8 bits, made from `source`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn quantized(
        cx: &mut StepContext<'_>,
        source: QuantizeSource,
        copies: Copies,
        quantize_as: QuantizeAs<'_>,
    ) -> Result<Operand> {
        let (height, width) = source.dimensions();
        let recipe = quantize_as.fp8.fp8.recipe;
        let of_rows = copies.rows().then(|| recipe.scaling());
        let of_columns = copies.columns().then(|| recipe.weight_gradient_scaling());
        let one_scale = match [of_rows, of_columns].contains(&Some(Scaling::Tensor)) {
            true => Some(quantize_as.one_scale(cx, source)?),
            false => None,
        };
        let delayed = quantize_as.delayed(cx);
        let QuantizeAs { dtype, counts, sums, again, .. } = quantize_as;
        let mut matrix = |scaling: Option<Scaling>, [name, scale_name]: [&'static str; 2], shape: Shape| {
            let Some(scaling) = scaling else { return Ok::<_, graph_manager::Error>(None) };
            let values = cx.tensor(name, shape, dtype)?;
            let mut scales = |shape: Shape| cx.tensor(scale_name, shape, DType::F32);
            let scale = match (scaling, one_scale) {
                (Scaling::Tensor, Some(scale)) => Scale::Tensor(scale),
                (Scaling::Tensor, None) => unreachable!("a tensor with one scale has it by now"),
                (Scaling::Rows, _) => Scale::Rows(scales([shape.rows()].into())?),
                (Scaling::Blocks, _) => Scale::Groups(scales(Scale::group_shape(shape.rows(), shape.last()).into())?),
            };
            Ok(Some(Fp8Matrix { values, scale }))
        };
        let rows = matrix(of_rows, ["rows_8bit", "row_scales"], source.shape())?;
        let columns = matrix(of_columns, ["columns_8bit", "column_scales"], [width, height].into())?;
        // Magnitudes that forward has recorded need not be recorded again. For rows with scales of their own it
        // recorded none.
        let seen = again && (copies.rows() || recipe.scaling() == Scaling::Tensor);
        let amax = one_scale.and(delayed).filter(|_| !seen).map(|cell| cell.amax);
        let accumulate = sums.is_some() && adds_to_gradients(cx);
        cx.run(Quantize { source, rows, columns, amax, sums, accumulate })?;
        if let Some(rows) = rows.filter(|_| !again) {
            counts.count(cx, source, rows)?;
        }
        Ok(Operand::Fp8 { rows, columns, plain: None })
    }
}

/// How an operand is quantised.
pub(crate) struct QuantizeAs<'p> {
    pub(crate) fp8: &'p Fp8Param,
    pub(crate) dtype: DType,
    /// The state of the operand's delayed scale, if the recipe has one.
    pub(crate) cell: Option<ScaleCell>,
    /// The counts of the values that the rows lose, in a step that measures.
    pub(crate) counts: CountCell,
    /// `(width)`, f32: gets the sums over rows: a bias gradient.
    pub(crate) sums: Option<Tensor>,
    /// Backward makes the copies again that forward made.
    pub(crate) again: bool,
    /// The ranks that have the other rows of the tensor. It has one scale over all of them.
    pub(crate) shared_by: Option<&'p Rc<dyn Communicator>>,
}

impl QuantizeAs<'_> {
    /// The state of the delayed scale. Evaluation has none: its scales follow from its own values.
    fn delayed(&self, cx: &StepContext<'_>) -> Option<ScaleCell> {
        self.cell.filter(|_| cx.mode().trains())
    }

    /// The scale of a `source` that has one scale.
    fn one_scale(&self, cx: &mut StepContext<'_>, source: QuantizeSource) -> Result<Tensor> {
        let delayed = self.delayed(cx);
        let scale = delayed.map_or_else(|| cx.tensor("scale", [1], DType::F32), |cell| Ok(cell.scale))?;
        let (dtype, keep_known) = (self.dtype, delayed.is_some());
        // The first step of a run has no history: its scale is that of the rows that come first, a microbatch or a tile
        // of one. Later steps know all delayed scales.
        let mut run = |op: Op| if keep_known { cx.run_early(op) } else { cx.run(op) };
        run(MakeScale { source, dtype, scale, keep_known }.into())?;
        if let Some(ranks) = self.shared_by {
            run(Collective::in_place(CollectiveKind::AllReduceMax, ranks.clone(), scale).into())?;
        }
        Ok(scale)
    }

    /// Memory for the copy of so many rows of `width` values that are quantised [tile by tile](Operand::quantize_tile).
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn rows(&self, cx: &mut StepContext<'_>, rows: usize, width: usize) -> Result<Fp8Matrix> {
        let Some(ScaleCell { scale, .. }) = self.cell else { unreachable!("tiles have delayed scales") };
        Ok(Fp8Matrix { values: cx.tensor("rows_8bit", [rows, width], self.dtype)?, scale: Scale::Tensor(scale) })
    }
}
