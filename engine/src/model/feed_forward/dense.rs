//! A feed-forward layer that every token passes whole: a matrix up to its width, an activation, a matrix down.

use device::Tensor;
use device::ops::{DropoutSite, Epilogue, QuantizeSource};
use graph_manager::Result;

use super::tiled::TiledFeedForward;
use crate::fp8::{Copies, Operand};
use crate::model::buffers::tensor_like;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::dropout::{DropoutLayer, drop_in_place, dropout_backward};
use crate::model::gpt::GptShape;
use crate::model::layer::Saved;
use crate::model::linear::{AdapterGradient, Linear, LinearSpec, Lora, SavedAdapter};
use crate::model::norm::Normed;
use crate::model::part::{BlockPart, PartSpec, SavedInput};
use crate::model::sequence::Samples;
use crate::model::tensor_parallel::{Packed, TensorParallel};
use crate::model::token_cost::TokenCost;
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// The activation between the two matrices. `up` is the first `(groups * ffn, hidden)`, `down` the second
/// `(hidden, ffn)`; on each rank its own part of `ffn`.
pub(super) trait Activation {
    /// Groups of `ffn` rows that the first matrix packs.
    fn groups(&self) -> usize;

    /// The width `ffn` if none is given.
    fn default_width(&self, hidden: usize) -> usize;

    /// For a `down` in 8 bits: how its input follows from `pre`. It is computed while it is quantised, and stored in 8
    /// bits only.
    fn source(&self, pre: Tensor) -> QuantizeSource;

    /// Likewise for an `up` in 8 bits: how the gradient of `pre` follows from `grad_output`, that of the input of
    /// `down`, `(batch, seq, ffn)`.
    fn backward_source(&self, pre: Tensor, grad_output: Tensor) -> QuantizeSource;

    /// Writes `activated` from `input` through `up`, and to `pre` the values that backward starts from.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_>, up: &Linear, tensors: ActivationForward<'_>) -> Result<()>;

    /// Writes `grad_pre` from `grad_output` through `down` and the activation.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_>, down: &Linear, tensors: ActivationBackward) -> Result<()>;
}

/// The tensors of an activation's forward.
pub(super) struct ActivationForward<'t> {
    /// `(batch, seq, hidden)`.
    pub(super) input: &'t Operand,
    /// `(batch, seq, groups * ffn)`, written.
    pub(super) pre: Tensor,
    /// `(batch, seq, ffn)`, written.
    pub(super) activated: Tensor,
    /// Written: the values that the backward of the adapters of `up` needs.
    pub(super) adapter: Option<SavedAdapter>,
}

/// The tensors of an activation's backward.
pub(super) struct ActivationBackward {
    /// `(batch, seq, hidden)`: gradient of the layer's output.
    pub(super) grad_output: Operand,
    /// `(batch, seq, groups * ffn)`, of the forward.
    pub(super) pre: Tensor,
    /// `(batch, seq, groups * ffn)`, written.
    pub(super) grad_pre: Tensor,
    /// `(batch, seq, ffn)`, of the forward.
    pub(super) activated: Tensor,
    /// `activated` was not saved. Backward writes it, to the bits of the forward.
    pub(super) recompute: bool,
    /// Written: the tensors that the gradients of the adapters of `down` are computed from.
    pub(super) adapter: Option<AdapterGradient>,
}

/// A dense feed-forward layer before it has memory.
pub(super) struct DenseSpec {
    pub(super) activation: &'static dyn Activation,
    /// The beginning of the layer's parameters' names, within the block's names.
    pub(super) name: &'static str,
    /// The width between the matrices.
    pub(super) width: usize,
    /// The layer's output has the dropout of values that are added to the residual stream.
    pub(super) drops: bool,
}

impl DenseSpec {
    fn linears(&self, shape: &GptShape, block: usize) -> [LinearSpec; 2] {
        let (&GptShape { hidden, bias, .. }, ffn) = (shape, self.width);
        let name = |name: &str| format!("h.{block}.{}.{name}", self.name);
        let groups = vec![Packed::channels(ffn); self.activation.groups()];
        let (fp8, lora) = (shape.block_fp8(block), shape.lora.as_ref());
        let (of_up, of_down) = (lora.and_then(|lora| lora.of_up(groups.len())), lora.and_then(Lora::of_down));
        [
            LinearSpec::column_parallel(name("c_fc"), hidden, groups, shape.matrix_init(), bias)
                .in_8_bits(fp8)
                .with_adapters(of_up),
            LinearSpec::row_parallel(name("c_proj"), ffn, hidden, shape.residual_init(), bias)
                .in_8_bits(fp8)
                .with_adapters(of_down),
        ]
    }
}

impl DenseSpec {
    /// The layer of a block, over its parameters.
    pub(super) fn layer(&self, builder: &LayerBuilder<'_>, block: usize) -> DenseFeedForward {
        let [up, down] = self.linears(builder.of.shape, block).map(|linear| linear.build_in_block(builder, block));
        let output = builder.of.hidden_dropout(block + 1, 2);
        DenseFeedForward {
            activation: self.activation,
            up,
            down,
            output: if self.drops { output } else { DropoutLayer { rate: 0.0, ..output } },
            ranks: builder.of.parallel.clone(),
            recompute: builder.of.shape.recompute,
        }
    }
}

impl PartSpec for DenseSpec {
    fn params(&self, shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
        self.linears(shape.shape, block).iter().flat_map(|linear| linear.params(shape.parallel, layer)).collect()
    }

    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart> {
        let (layer, tiles) = (self.layer(builder, block), builder.of.shape.mlp_tiles);
        if tiles > 1 { Box::new(TiledFeedForward { layer, tiles }) } else { Box::new(layer) }
    }

    fn cost(&self, shape: &GptShape, block: usize, _tokens_per_sample: usize) -> TokenCost {
        let (up, ffn) = (self.activation.groups() * self.width, self.width);
        let activation = TokenCost { values: (up + ffn) + (2 * up + ffn), ..TokenCost::default() };
        self.linears(shape, block).iter().map(LinearSpec::cost).chain([activation]).sum()
    }
}

/// A dense feed-forward layer over its parameters.
pub(super) struct DenseFeedForward {
    pub(super) activation: &'static dyn Activation,
    /// `(groups * ffn, hidden)`.
    pub(super) up: Linear,
    /// `(hidden, ffn)`.
    pub(super) down: Linear,
    pub(super) output: DropoutLayer,
    pub(super) ranks: TensorParallel,
    /// Whether backward recomputes the activated values, which then are not kept.
    recompute: bool,
}

struct SavedFeedForward {
    /// The normed values in 8 bits, if the norm does not store normed values: this rank's rows, if rows are gathered.
    /// `None` if backward recomputes them.
    normed: Option<Operand>,
    /// `(batch, seq, groups * ffn)`.
    pre: Tensor,
    /// The activated values, `(batch, seq, ffn)`, unless backward recomputes the values.
    activated: Option<Operand>,
    output: Option<DropoutSite>,
    /// Of the first matrix.
    of_up: Option<SavedAdapter>,
    /// Of the second.
    of_down: Option<SavedAdapter>,
}

impl DenseFeedForward {
    /// Whether values between the matrices are computed during quantisation. Adapters read them as they are.
    fn computes_in_8_bits(&self) -> bool {
        self.down.is_8_bit() && !self.up.has_adapter() && !self.down.has_adapter()
    }

    /// Forward up to the second product: the activated values `(batch, seq, ffn)`, and the values that backward needs.
    fn activate(
        &self,
        cx: &mut StepContext<'_>,
        normed: Normed,
        record: Option<Tensor>,
    ) -> Result<(Operand, SavedFeedForward)> {
        let (input, normed) = self.up.normed_input(cx, normed, !self.recompute, &self.ranks)?;
        self.up.make_copies(cx)?;
        let pre = self.up.output(cx, "pre_activation", input.rows())?;
        let of_up = self.up.saved_adapter(cx, input.rows(), record)?;
        let copies = Copies::of_input(cx, !self.recompute);
        let activated = self.activated(cx, &input, pre, copies, of_up)?;
        let (saved, output) =
            ((!self.recompute).then(|| activated.for_weight_gradient()), self.output.site(cx, record));
        Ok((activated, SavedFeedForward { normed, pre, activated: saved, output, of_up, of_down: None }))
    }

    /// The activated values of an input, in the form that the second product reads. Writes `pre`, and the values that
    /// the backward of the adapters of the first matrix needs.
    pub(super) fn activated(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        pre: Tensor,
        copies: Copies,
        adapter: Option<SavedAdapter>,
    ) -> Result<Operand> {
        if self.computes_in_8_bits() {
            self.up.product(cx, input, pre, adapter)?;
            return self.down.computed_input(cx, self.activation.source(pre), copies);
        }
        let activated = tensor_like(cx, "activated", &pre, self.down.input_width())?;
        self.activation.forward(cx, &self.up, ActivationForward { input, pre, activated, adapter })?;
        self.down.input_beside(cx, activated)
    }

    /// Backward through the second matrix and the activation: the gradient of `pre`, and the activated values. Writes
    /// the tensors that the gradients of the matrix's adapters are computed from.
    fn backward_to_pre(
        &self,
        cx: &mut StepContext<'_>,
        grad_output: Operand,
        saved: &SavedFeedForward,
        adapter: Option<AdapterGradient>,
    ) -> Result<(Operand, Operand)> {
        if self.computes_in_8_bits() {
            let grad_activated = self.down.input_gradient(cx, "grad_activated", grad_output.rows())?;
            self.down.dgrad(cx, &grad_output, grad_activated, Epilogue::None, adapter)?;
            let activated = match saved.activated {
                Some(activated) => activated,
                None => self.down.computed_input(cx, self.activation.source(saved.pre), Copies::Columns)?,
            };
            let source = self.activation.backward_source(saved.pre, grad_activated);
            return Ok((self.up.computed_grad_output(cx, source)?, activated));
        }
        let grad_pre = cx.tensor("grad_pre_activation", saved.pre.shape, saved.pre.dtype)?;
        let activated = match saved.activated {
            Some(activated) => activated.plain(),
            None => tensor_like(cx, "activated", &saved.pre, self.down.input_width())?,
        };
        let recompute = saved.activated.is_none();
        let pre = saved.pre;
        let tensors = ActivationBackward { grad_output, pre, grad_pre, activated, recompute, adapter };
        self.activation.backward(cx, &self.down, tensors)?;
        Ok((self.up.grad_output(cx, grad_pre)?, Operand::Plain(activated)))
    }
}

impl BlockPart for DenseFeedForward {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)> {
        let record = samples.record;
        let (activated, saved) = self.activate(cx, normed, record)?;
        let names = ["ffn_out", "ffn_out_here"];
        let (delta, of_down) = self.down.forward_row_parallel(cx, &activated, record, names, &self.ranks)?;
        drop_in_place(cx, delta, saved.output)?;
        Ok((delta, Saved::new(SavedFeedForward { of_down, ..saved })))
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<Saved> {
        let (activated, saved) = self.activate(cx, normed, samples.record)?;
        let of_down = self.down.saved_adapter(cx, activated.rows(), samples.record)?;
        self.down.prepare_backward(cx, &activated, of_down)?;
        Ok(Saved::new(SavedFeedForward { of_down, ..saved }))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor> {
        let saved: &SavedFeedForward = saved.get();
        let grad_delta = dropout_backward(cx, "grad_ffn_out", grad, saved.output)?;
        let name = "all_grad_ffn_out";
        let grad_delta = self.down.gathered_grad_output(cx, name, grad_delta, &self.ranks)?;

        // Only the weight gradient at the end reads it: with sequence parallelism a pass gathers it beside products.
        let normed = input.gather(cx, "all_normed_2", saved.normed, &self.up, &self.ranks)?;
        let adapter = self.down.adapter_gradient(cx, saved.of_down, grad_delta.rows())?;
        let (grad_pre, activated) = self.backward_to_pre(cx, grad_delta, saved, adapter)?;
        self.down.weight_gradients(cx, activated, grad_delta, adapter)?;
        let names = ["grad_normed_2", "grad_normed_2_here"];
        self.up.backward_column_parallel(cx, normed, grad_pre, saved.of_up, names, &self.ranks)
    }

    fn for_backward(&self, saved: &Saved) -> Vec<Tensor> {
        let SavedFeedForward { normed, pre, activated, .. } = saved.get();
        let operands = normed.iter().chain(activated).filter_map(Operand::of_weight_gradient);
        [*pre].into_iter().chain(operands).collect()
    }

    fn computes_input(&self) -> bool {
        self.up.computes_input(&self.ranks)
    }

    fn leave_bias_to_norm(&mut self) -> Option<Param> {
        self.down.leave_bias_to_norm(&self.output, &self.ranks)
    }
}
