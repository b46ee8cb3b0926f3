//! A dense feed-forward layer in tiles of tokens. Only one tile of the values between the matrices is in memory, but for
//! those that weight gradients read.
//!
//! The layer saves its input alone: backward computes the first product of each tile again. Weight gradients are
//! computed once, over all tokens, so their sums keep their order. With products in 8 bits the bytes of all tiles are
//! transposed for them, which is why a tensor has one delayed scale.

use device::Tensor;
use device::ops::{DropoutSite, Epilogue};
use graph_manager::Result;

use super::dense::{ActivationBackward, DenseFeedForward};
use crate::fp8::{Copies, Operand};
use crate::model::buffers::with_width;
use crate::model::dropout::{drop_in_place, dropout_backward};
use crate::model::layer::Saved;
use crate::model::linear::SavedAdapter;
use crate::model::norm::Normed;
use crate::model::part::{BlockPart, SavedInput};
use crate::model::sequence::Samples;
use crate::params::Param;
use crate::precision::Product;
use crate::step_policy::StepContext;
use crate::tile::Tile;

/// The layer, and the number of tiles. Its products have no factors of 8 bits, or such with delayed scales.
pub(super) struct TiledFeedForward {
    pub(super) layer: DenseFeedForward,
    pub(super) tiles: usize,
}

struct SavedTiles {
    output: Option<DropoutSite>,
    /// The microbatch's `SampleRecord`, if there is dropout.
    record: Option<Tensor>,
}

impl TiledFeedForward {
    fn tiles(&self, cx: &StepContext<'_>, rows: &Tensor) -> Vec<Tile> {
        Tile::all(cx, rows.shape.rows(), self.tiles)
    }

    /// The values before the activation of a tile with this input, again.
    fn pre_again(&self, cx: &mut StepContext<'_>, input: &Operand, adapter: Option<SavedAdapter>) -> Result<Tensor> {
        let pre = self.layer.up.output(cx, "pre_activation", input.rows())?;
        self.layer.up.product(cx, input, pre, adapter)?;
        Ok(pre)
    }

    /// Backward through the second matrix and the activation, with the gradients of that matrix: the gradient of the
    /// values before the activation. Writes what the adapters of the first matrix save.
    fn backward_to_pre(
        &self,
        cx: &mut StepContext<'_>,
        grad_output: Tensor,
        input: Operand,
        of_up: Option<SavedAdapter>,
        record: Option<Tensor>,
    ) -> Result<Operand> {
        let DenseFeedForward { activation, up, down, .. } = &self.layer;
        let low_of_down = down.saved_adapter(cx, input.rows(), record)?;
        let of_down = down.adapter_gradient(cx, low_of_down, &grad_output)?;
        let grad_pre = cx.tensor("grad_pre_activation", with_width(&grad_output, up.width()), grad_output.dtype)?;
        // The weight gradients of the second matrix read it, unless that matrix is frozen.
        let read_whole = down.weight.grad.is_some() || of_down.is_some();
        let tiles = self.tiles(cx, &grad_output);
        let like = if read_whole { grad_output } else { tiles[0].of(grad_output) };
        let dtype = up.precision.output(Product::Forward);
        let all_activated = cx.tensor("activated", with_width(&like, down.input_width()), dtype)?;
        for tile in tiles {
            let pre = self.pre_again(cx, &input.of_tile(tile), of_up.map(|of| of.of_tile(tile)))?;
            let activated = if read_whole { tile.of(all_activated) } else { tile.scratch(all_activated) };
            let tensors = ActivationBackward {
                grad_output: Operand::Plain(tile.of(grad_output)),
                pre,
                grad_pre: tile.of(grad_pre),
                activated,
                recompute: true,
                adapter: of_down.map(|of| of.of_tile(tile)),
            };
            activation.backward(cx, down, tensors)?;
            down.prepare_backward(cx, &Operand::Plain(activated), low_of_down.map(|low| low.of_tile(tile)))?;
        }
        down.weight_gradients(cx, Operand::Plain(all_activated), Operand::Plain(grad_output), of_down)?;
        Ok(Operand::Plain(grad_pre))
    }

    /// The same with products in 8 bits, in a layer without adapters.
    fn backward_to_pre_8_bits(
        &self,
        cx: &mut StepContext<'_>,
        grad_output: Operand,
        input: Operand,
    ) -> Result<Operand> {
        let DenseFeedForward { activation, up, down, .. } = &self.layer;
        let rows = grad_output.rows().shape.rows();
        let (activated, grad_pre) = (down.input_rows(cx, rows)?, up.grad_output_rows(cx, rows)?);
        for tile in self.tiles(cx, grad_output.rows()) {
            let pre = self.pre_again(cx, &input.of_tile(tile), None)?;
            let grad_output = grad_output.of_tile(tile);
            let grad_activated = down.input_gradient(cx, "grad_activated", grad_output.rows())?;
            down.dgrad(cx, &grad_output, grad_activated, Epilogue::None, None)?;
            down.quantize_input(cx, activation.source(pre), activated, tile)?;
            up.quantize_grad_output(cx, activation.backward_source(pre, grad_activated), grad_pre, tile)?;
        }
        let activated = Operand::transposed(cx, activated, Copies::Columns)?;
        down.weight_gradients(cx, activated, grad_output, None)?;
        Operand::transposed(cx, grad_pre, Copies::Both)
    }
}

impl BlockPart for TiledFeedForward {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)> {
        let DenseFeedForward { up, down, output, ranks, .. } = &self.layer;
        let record = samples.record;
        let (input, _) = up.normed_input(cx, normed, false, ranks)?;
        let delta = down.output(cx, "ffn_out", input.rows())?;
        let of_up = up.saved_adapter(cx, input.rows(), record)?;
        let of_down = down.saved_adapter(cx, input.rows(), record)?;
        up.make_copies(cx)?;
        down.make_copies(cx)?;
        for tile in self.tiles(cx, input.rows()) {
            let [of_up, of_down] = [of_up, of_down].map(|of| of.map(|of| of.of_tile(tile)));
            let input = input.of_tile(tile);
            let pre = up.output(cx, "pre_activation", input.rows())?;
            let activated = self.layer.activated(cx, &input, pre, Copies::Rows, of_up)?;
            down.row_parallel_product(cx, &activated, tile.of(delta), of_down, ranks)?;
        }
        let delta = ranks.reduce(cx, "ffn_out_here", delta)?;
        let output = output.site(cx, record);
        drop_in_place(cx, delta, output)?;
        Ok((delta, Saved::new(SavedTiles { output, record })))
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, _normed: Normed, samples: Samples) -> Result<Saved> {
        let record = samples.record;
        Ok(Saved::new(SavedTiles { output: self.layer.output.site(cx, record), record }))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor> {
        let DenseFeedForward { up, down, ranks, .. } = &self.layer;
        let SavedTiles { output, record } = saved.get();
        let grad_delta = dropout_backward(cx, "grad_ffn_out", grad, *output)?;
        let grad_delta = down.gathered_grad_output(cx, "all_grad_ffn_out", grad_delta, ranks)?;
        let normed = input.gather(cx, "all_normed_2", None, up, ranks)?;
        let rows = normed.rows(cx, up)?;
        let of_up = up.saved_adapter(cx, rows.rows(), *record)?;
        up.make_copies(cx)?;
        let grad_pre = match grad_delta {
            Operand::Plain(grad_output) => self.backward_to_pre(cx, grad_output, rows, of_up, *record)?,
            grad_output => self.backward_to_pre_8_bits(cx, grad_output, rows)?,
        };
        let names = ["grad_normed_2", "grad_normed_2_here"];
        up.backward_column_parallel(cx, normed, grad_pre, of_up, names, ranks)
    }

    fn computes_input(&self) -> bool {
        self.layer.computes_input()
    }

    fn leave_bias_to_norm(&mut self) -> Option<Param> {
        self.layer.leave_bias_to_norm()
    }
}
