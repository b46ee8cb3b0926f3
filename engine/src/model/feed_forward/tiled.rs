//! A dense feed-forward layer in tiles of tokens. Only one tile of the values between the matrices is in memory, but for
//! those that weight gradients read.
//!
//! The layer saves its input alone: backward computes the first product of each tile again. Weight gradients are computed
//! once, over all tokens, so their sums keep their order.

use device::Tensor;
use device::ops::DropoutSite;
use graph_manager::Result;

use super::dense::{ActivationBackward, ActivationForward, DenseFeedForward};
use crate::fp8::Operand;
use crate::model::buffers::with_width;
use crate::model::dropout::{drop_in_place, dropout_backward};
use crate::model::hidden::Samples;
use crate::model::norm::Normed;
use crate::model::part::{BlockPart, SavedInput};
use crate::model::saved::Saved;
use crate::params::Param;
use crate::step_policy::StepContext;

/// A tile has a multiple of so many rows: the host computes as many at once, so that its bits do not depend on tiles.
const ROWS: usize = 128;

/// The layer, and the number of tiles. It has neither adapters nor factors of 8 bits.
pub(super) struct TiledFeedForward {
    pub(super) layer: DenseFeedForward,
    pub(super) tiles: usize,
}

/// Neighbouring rows of a microbatch.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    rows: usize,
}

impl Tile {
    /// The tile's rows of a tensor of all rows.
    fn of(self, whole: Tensor) -> Tensor {
        let width = whole.shape.last();
        whole.view(self.first * width, [self.rows, width])
    }

    /// A tensor that is there for one tile at a time, as large as this tile.
    fn scratch(self, largest: Tensor) -> Tensor {
        largest.view(0, [self.rows, largest.shape.last()])
    }
}

impl TiledFeedForward {
    /// The tiles of so many rows. All but the last are equally large.
    fn tiles(&self, rows: usize) -> Vec<Tile> {
        let size = rows.div_ceil(self.tiles).next_multiple_of(ROWS);
        (0..rows).step_by(size).map(|first| Tile { first, rows: size.min(rows - first) }).collect()
    }
}

impl BlockPart for TiledFeedForward {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)> {
        let DenseFeedForward { activation, up, down, output, ranks, .. } = &self.layer;
        let (input, _) = up.normed_input(cx, normed, false, ranks)?;
        let input = input.plain();
        let delta = down.output(cx, "ffn_out", &input)?;
        let tiles = self.tiles(input.shape.rows());
        let pre = up.output(cx, "pre_activation", &tiles[0].of(input))?;
        let activated = cx.tensor("activated", with_width(&pre, down.input_width()), pre.dtype)?;
        for tile in tiles {
            let [pre, activated] = [pre, activated].map(|tensor| tile.scratch(tensor));
            let input = Operand::Plain(tile.of(input));
            let tensors = ActivationForward { input: &input, pre, activated, record: samples.record };
            activation.forward(cx, up, tensors)?;
            down.row_parallel_product(cx, &Operand::Plain(activated), tile.of(delta), ranks)?;
        }
        let delta = ranks.reduce(cx, "ffn_out_here", delta)?;
        let output = output.site(cx, samples.record);
        drop_in_place(cx, delta, output)?;
        Ok((delta, Saved::new(output)))
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, _normed: Normed, samples: Samples) -> Result<Saved> {
        Ok(Saved::new(self.layer.output.site(cx, samples.record)))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor> {
        let DenseFeedForward { activation, up, down, ranks, .. } = &self.layer;
        let output: &Option<DropoutSite> = saved.get();
        let grad_delta = dropout_backward(cx, "grad_ffn_out", grad, *output)?;
        let grad_delta = down.gathered_grad_output(cx, "all_grad_ffn_out", grad_delta, ranks)?;
        let normed = input.gather(cx, "all_normed_2", None, up, ranks)?;
        let (grad_output, input) = (grad_delta.plain(), normed.operand(cx, up)?.plain());

        let tiles = self.tiles(input.shape.rows());
        let pre = up.output(cx, "pre_activation", &tiles[0].of(input))?;
        let grad_pre = cx.tensor("grad_pre_activation", with_width(&grad_output, up.width()), grad_output.dtype)?;
        // The weight gradient of the second matrix reads it, unless that matrix is frozen.
        let read_whole = down.weight.grad.is_some();
        let like = if read_whole { grad_output } else { tiles[0].of(grad_output) };
        let activated = cx.tensor("activated", with_width(&like, down.input_width()), pre.dtype)?;
        for tile in tiles {
            let pre = tile.scratch(pre);
            up.forward(cx, &Operand::Plain(tile.of(input)), pre, None)?;
            let tensors = ActivationBackward {
                grad_output: Operand::Plain(tile.of(grad_output)),
                pre,
                grad_pre: tile.of(grad_pre),
                activated: if read_whole { tile.of(activated) } else { tile.scratch(activated) },
                recompute: true,
                adapter: None,
            };
            activation.backward(cx, down, tensors)?;
        }
        down.weight_gradients(cx, Operand::Plain(activated), grad_delta, None)?;
        let names = ["grad_normed_2", "grad_normed_2_here"];
        up.backward_column_parallel(cx, normed, Operand::Plain(grad_pre), None, names, ranks)
    }

    fn leave_bias_to_norm(&mut self) -> Option<Param> {
        self.layer.leave_bias_to_norm()
    }
}
