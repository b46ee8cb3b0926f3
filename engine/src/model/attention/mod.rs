//! Causal self-attention. Grouped attention is here: packed queries, keys and values, of which there may be fewer key and value
//! heads than query heads. Latent attention is in `latent.rs`. Both have attention itself in `attend.rs`.

mod attend;
pub(super) mod attended;
mod cached;
mod context;
mod head_norms;
mod heads;
mod joint_norms;
mod latent;
mod ready;
mod ring;
mod sinks;

use device::Tensor;
use device::ops::{Documents, DropoutPart, DropoutSite};
use graph_manager::Result;

use self::attend::{Attending, AttentionCore};
use self::attended::{Attended, AttentionGrads};
use self::latent::LatentAttentionSpec;
use self::ready::{QkNorms, ReadyQkv, norm_cost, norm_params};
use super::builder::{LayerBuilder, ShardedShape};
use super::dropout::{DropoutLayer, drop_in_place, dropout_backward};
use super::linear::{Linear, LinearSpec};
use super::norm::Normed;
use super::part::{BlockPart, DecodeStep, PartSpec, SavedInput};
use super::tensor_parallel::{Packed, TensorParallel};
use super::token_cost::TokenCost;
use crate::batch_sizes::BatchSizes;
use crate::fp8::{Copies, Operand};
use crate::model::gpt::{AttentionKind, GptShape};
use crate::model::layer::Saved;
use crate::model::linear::{Lora, SavedAdapter};
use crate::model::sequence::{Samples, TokensHere};
use crate::params::{Param, ParamSpec};
use crate::step_policy::StepContext;

/// The attention of a block, without memory yet; `None` if blocks have no attention.
pub(crate) fn attention(shape: &GptShape) -> Option<Box<dyn PartSpec>> {
    match shape.attention {
        AttentionKind::None => None,
        AttentionKind::Grouped { .. } => Some(Box::new(CausalAttentionSpec)),
        AttentionKind::Latent(latent) => Some(Box::new(LatentAttentionSpec(latent))),
    }
}

/// Grouped attention before it has memory.
struct CausalAttentionSpec;

impl CausalAttentionSpec {
    /// The linear layer before attention, with packed queries, keys and values, and the linear layer after attention.
    fn linears(&self, shape: &GptShape, block: usize) -> [LinearSpec; 2] {
        let queries = shape.heads * shape.head_dim();
        let name = |name: &str| format!("h.{block}.attn.{name}");
        let keys = Packed::heads(shape.kv_heads, shape.head_dim());
        let groups = vec![Packed::heads(shape.heads, shape.head_dim()), keys, keys];
        let (fp8, qkv_bias) = (shape.block_fp8(block), shape.bias || shape.qkv_bias);
        let lora = shape.lora.as_ref();
        [
            LinearSpec::column_parallel(name("c_attn"), shape.hidden, groups, shape.matrix_init(), qkv_bias)
                .in_8_bits(fp8)
                .with_adapters(lora.and_then(Lora::of_qkv)),
            LinearSpec::row_parallel(name("c_proj"), queries, shape.hidden, shape.residual_init(), shape.bias)
                .in_8_bits(fp8)
                .with_adapters(lora.and_then(Lora::of_attention_output)),
        ]
    }
}

impl PartSpec for CausalAttentionSpec {
    fn params(&self, shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
        let linears = self.linears(shape.shape, block);
        let of_linears = linears.iter().flat_map(|linear| linear.params(shape.parallel, layer));
        of_linears.chain(norm_params(shape, block, layer)).chain(sinks::params(shape, block, layer)).collect()
    }

    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart> {
        let ShardedShape { shape, parallel } = builder.of;
        let [qkv, projection] = self.linears(shape, block).map(|linear| linear.build_in_block(builder, block));
        let heads = shape.heads / parallel.size();
        let own_heads = DropoutPart { first_head: parallel.rank() * heads, ..DropoutPart::default() };
        let layer = block + 1;
        Box::new(CausalAttention {
            qkv,
            projection,
            core: AttentionCore::build(builder, block, builder.of.own_kv_heads(), shape.head_dim()),
            norms: QkNorms::build(builder, block),
            rotary: builder.step.rotary.of(shape.mask(block)).copied(),
            here: builder.step.here.clone(),
            probabilities: builder.of.dropout(shape.attention_dropout, layer, 0, own_heads),
            output: builder.of.hidden_dropout(layer, 1),
            ranks: builder.of.parallel.clone(),
            recompute: shape.recompute,
        })
    }

    fn cost(&self, shape: &GptShape, block: usize, tokens_per_sample: usize) -> TokenCost {
        let width = shape.heads * shape.head_dim();
        let qkv = width + 2 * shape.kv_heads * shape.head_dim();
        let attention = TokenCost {
            // Scores, and values weighted by them: two products of the pairs that the mask leaves.
            scores: width * shape.mask(block).doubled_pairs(tokens_per_sample) / tokens_per_sample,
            values: (qkv + width) + (2 * qkv + 2 * width) + if shape.attention.has_sinks() { 4 * width } else { 0 },
            ..TokenCost::default()
        };
        self.linears(shape, block).iter().map(LinearSpec::cost).chain([attention, norm_cost(shape)]).sum()
    }
}

/// Grouped attention over its parameters.
struct CausalAttention {
    /// `((heads + 2 kv_heads) * head_dim, hidden)`: rows of queries, then keys, then values.
    qkv: Linear,
    /// `(hidden, heads * head_dim)`.
    projection: Linear,
    core: AttentionCore,
    norms: QkNorms,
    /// `(max_seq_len, head_dim / 2, 2)`, f32: cosines and sines, or those of the tokens here if ranks divide sequences.
    /// `None` if positions are not rotary.
    rotary: Option<Tensor>,
    here: TokensHere,
    probabilities: DropoutLayer,
    output: DropoutLayer,
    ranks: TensorParallel,
    /// Whether backward recomputes normed values, which then are not kept.
    recompute: bool,
}

struct SavedAttention {
    /// The normed values in 8 bits, if the norm does not store normed values: this rank's rows, if rows are gathered.
    /// `None` if backward recomputes them.
    normed: Option<Operand>,
    qkv: SavedQkv,
    attended: Attended,
    /// The context in the form that the projection's weight gradient reads.
    projected: Operand,
    documents: Option<Documents>,
    probabilities: Option<DropoutSite>,
    output: Option<DropoutSite>,
    /// The values of the adapters of the layer before attention, and of the layer after attention.
    adapters: [Option<SavedAdapter>; 2],
}

/// The queries, keys and values that backward keeps, `(batch, seq, (heads + 2 kv_heads) * head_dim)`.
#[derive(Clone, Copy)]
struct SavedQkv {
    /// The output of the layer before attention.
    projected: Tensor,
    /// The queries, keys and values that attention reads; `None` if backward normalises again.
    ready: Option<ReadyQkv>,
}

impl CausalAttention {
    /// `(seq, head_dim / 2, 2)`, f32: cosines and sines of the positions in the step's samples.
    fn angles(&self, cx: &StepContext<'_>) -> Option<Tensor> {
        let tokens = BatchSizes::of(cx).tokens_per_sample;
        self.rotary.map(|table| table.narrow(self.here.first_row(tokens), tokens))
    }
}

impl CausalAttention {
    /// The forward of the layer; attention runs only if no output was `kept`.
    fn run(
        &self,
        cx: &mut StepContext<'_>,
        normed: Normed,
        samples: Samples,
        kept: Option<Attended>,
    ) -> Result<(Tensor, Saved)> {
        let (record, documents) = (samples.record, samples.apart());
        let (input, normed) = self.qkv.normed_input(cx, normed, !self.recompute, &self.ranks)?;
        let projected_qkv = self.qkv.output(cx, "qkv", input.rows())?;
        let qkv_adapter = self.qkv.forward(cx, &input, projected_qkv, record)?;
        let ready = self.make_ready(cx, projected_qkv, self.angles(cx))?;
        let probabilities = self.probabilities.site(cx, record);
        let attended = match kept {
            Some(attended) => attended,
            None => self.core.attend(cx, ready.qkv, documents, probabilities)?,
        };
        let names = ["attention_out", "attention_out_here"];
        let projected = self.projection.input(cx, attended.context, Copies::of_input(cx, true))?;
        let (delta, adapter) = self.projection.forward_row_parallel(cx, &projected, record, names, &self.ranks)?;
        let output = self.output.site(cx, record);
        drop_in_place(cx, delta, output)?;
        let projected = projected.for_weight_gradient();
        let normed_again = self.recompute && !self.norms.is_none();
        let qkv = SavedQkv { projected: projected_qkv, ready: (!normed_again).then_some(ready) };
        let adapters = [qkv_adapter, adapter];
        let saved = SavedAttention { normed, qkv, attended, projected, documents, probabilities, output, adapters };
        Ok((delta, Saved::new(saved)))
    }
}

impl BlockPart for CausalAttention {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)> {
        self.run(cx, normed, samples, None)
    }

    fn attended(&self, saved: &Saved) -> Option<Attended> {
        Some(saved.get::<SavedAttention>().attended)
    }

    fn for_backward(&self, saved: &Saved) -> Vec<Tensor> {
        let SavedAttention { normed, qkv, attended, projected, .. } = saved.get();
        let operands = normed.iter().chain([projected]).filter_map(Operand::of_weight_gradient);
        let ready = qkv.ready.map(|ready| ready.qkv);
        attended.tensors().into_iter().chain([qkv.projected]).chain(ready).chain(operands).collect()
    }

    fn forward_around(
        &self,
        cx: &mut StepContext<'_>,
        normed: Normed,
        samples: Samples,
        kept: Attended,
    ) -> Result<(Tensor, Saved)> {
        self.run(cx, normed, samples, Some(kept))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor> {
        let saved: &SavedAttention = saved.get();
        let grad_delta = dropout_backward(cx, "grad_attention_out", grad, saved.output)?;
        let projection = &self.projection;
        let name = "all_grad_attention_out";
        let grad_delta = projection.gathered_grad_output(cx, name, grad_delta, &self.ranks)?;

        // Only the weight gradient at the end reads it: with sequence parallelism a pass gathers it beside products.
        let normed = input.gather(cx, "all_normed_1", saved.normed, &self.qkv, &self.ranks)?;
        let sent = saved.qkv.ready.map(|ready| self.core.send(cx, ready.qkv, saved.documents)).transpose()?;
        let grad_context = projection.input_gradient(cx, "grad_context", grad_delta.rows())?;
        let [of_qkv, of_projection] = saved.adapters;
        projection.backward(cx, saved.projected, grad_delta, grad_context, of_projection)?;
        let ready = match saved.qkv.ready {
            Some(ready) => ready,
            None => self.make_ready(cx, saved.qkv.projected, self.angles(cx))?,
        };
        let qkv = ready.qkv;
        let grad_qkv = cx.tensor("grad_qkv", qkv.shape, grad.dtype)?;
        let attending =
            Attending { qkv, attended: saved.attended, documents: saved.documents, dropout: saved.probabilities };
        let grads = AttentionGrads { context: grad_context, qkv: grad_qkv };
        self.core.attend_backward(cx, attending, sent, grads)?;
        self.make_ready_backward(cx, saved.qkv.projected, ready, grad_qkv)?;
        let names = ["grad_normed_1", "grad_normed_1_here"];
        let grad_qkv = self.qkv.grad_output(cx, grad_qkv)?;
        self.qkv.backward_column_parallel(cx, normed, grad_qkv, of_qkv, names, &self.ranks)
    }

    fn decode(&self, cx: &mut StepContext<'_>, normed: Tensor, step: &DecodeStep) -> Result<Tensor> {
        let projected_qkv = self.qkv.output(cx, "qkv", &normed)?;
        let input = self.qkv.input(cx, normed, Copies::Rows)?;
        self.qkv.forward(cx, &input, projected_qkv, None)?;
        let qkv = self.make_ready(cx, projected_qkv, step.angles.of(self.core.mask).copied())?.qkv;
        let context = self.core.decode(cx, qkv, step)?;
        let delta = self.projection.output(cx, "attention_out", &context)?;
        let projected = self.projection.input(cx, context, Copies::Rows)?;
        self.projection.forward(cx, &projected, delta, None)?;
        Ok(delta)
    }

    fn cache_width(&self) -> Option<usize> {
        Some(self.core.cache_width())
    }

    fn computes_input(&self) -> bool {
        self.qkv.computes_input(&self.ranks)
    }

    fn leave_bias_to_norm(&mut self) -> Option<Param> {
        self.projection.leave_bias_to_norm(&self.output, &self.ranks)
    }
}
