//! Latent attention (DeepSeek-V2, 2024): keys and values of all heads follow from one narrow vector of a token, the latent,
//! and queries may too. The channels that rotate lie apart: those of keys are the same for all heads.
//!
//! Heads are packed as attention reads them, with zeros where values have fewer channels than queries. So it goes with every
//! kernel, and with ranks that divide sequences or exchange heads. Decoding caches latents alone: see
//! [`CachedLatentAttention`].

use device::Tensor;
use device::ops::{
    CachedLatentAttention, Corner, DropoutPart, DropoutSite, LatentHead, LatentTensors, PackLatent, PackLatentBackward,
    ResizeHeads,
};
use graph_manager::Result;

use super::attend::{Attending, AttentionCore};
use super::attended::{Attended, AttentionGrads};
use super::context::block;
use crate::batch_sizes::BatchSizes;
use crate::fp8::{Copies, Operand};
use crate::model::buffers::tensor_like;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::dropout::{DropoutLayer, drop_in_place, dropout_backward};
use crate::model::gpt::{GptShape, Latent};
use crate::model::layer::Saved;
use crate::model::linear::{AdapterSpec, Linear, LinearSpec, Lora, SavedAdapter};
use crate::model::norm::{NormLayer, NormSums, Normed, SavedNorm};
use crate::model::part::{BlockPart, DecodeStep, PartSpec, SavedInput};
use crate::model::sequence::{Samples, TokensHere};
use crate::model::tensor_parallel::{Packed, TensorParallel};
use crate::model::token_cost::TokenCost;
use crate::params::{Init, Param, ParamSpec};
use crate::step_policy::StepContext;

/// The epsilon added to the variance of latents: DeepSeek's value, whatever a model's other norms add.
const EPS: f32 = 1e-6;

/// Latent attention before it has memory.
pub(crate) struct LatentAttentionSpec(pub(crate) Latent);

/// A vector that others follow from: its name, its width, and the channels of a head that follow from it.
struct LatentSpec {
    name: &'static str,
    width: usize,
    of_head: usize,
    adapters: fn(&Lora) -> Option<AdapterSpec>,
}

impl LatentAttentionSpec {
    /// The latents in the order of the latents' columns: that of queries, if they have one, then that of keys and
    /// values.
    fn latents(&self) -> impl Iterator<Item = LatentSpec> {
        let Latent { query_rank, rank, head } = self.0;
        let (name, of_head, adapters) = ("q_b", head.query(), Lora::of_query_latent as fn(&Lora) -> _);
        let of_queries = query_rank.map(|width| LatentSpec { name, width, of_head, adapters });
        let (of_head, adapters) = (head.plain + head.value, Lora::of_key_value_latent);
        let of_keys = LatentSpec { name: "kv_b", width: rank, of_head, adapters };
        of_queries.into_iter().chain([of_keys])
    }

    /// The first product. Every rank computes all of the latents and of the keys' rotated channels, and the queries of its
    /// heads if these follow from no latent.
    fn first(&self, shape: &GptShape, block: usize) -> LinearSpec {
        let Latent { query_rank, rank, head } = self.0;
        let queries = query_rank.map_or(Packed::heads(shape.heads, head.query()), Packed::copied);
        let groups = vec![queries, Packed::copied(rank + head.rotated)];
        LinearSpec::column_parallel(name(block, "c_attn"), shape.hidden, groups, shape.matrix_init(), shape.bias)
            .in_8_bits(shape.block_fp8(block))
            .with_adapters(shape.lora.as_ref().and_then(|lora| lora.of_latents(self.0.queries())))
    }

    fn of_latent(&self, shape: &GptShape, block: usize, latent: &LatentSpec) -> LinearSpec {
        let groups = vec![Packed::heads(shape.heads, latent.of_head)];
        LinearSpec::column_parallel(name(block, latent.name), latent.width, groups, shape.matrix_init(), false)
            .in_8_bits(shape.block_fp8(block))
            .with_adapters(shape.lora.as_ref().and_then(latent.adapters))
    }

    fn last(&self, shape: &GptShape, block: usize) -> LinearSpec {
        let values = shape.heads * self.0.head.value;
        LinearSpec::row_parallel(name(block, "c_proj"), values, shape.hidden, shape.residual_init(), shape.bias)
            .in_8_bits(shape.block_fp8(block))
            .with_adapters(shape.lora.as_ref().and_then(Lora::of_attention_output))
    }
}

fn name(block: usize, of: &str) -> String {
    format!("h.{block}.attn.{of}")
}

fn norm_name(block: usize, latent: &str) -> String {
    format!("h.{block}.attn.{latent}_norm.weight")
}

impl PartSpec for LatentAttentionSpec {
    fn params(&self, of: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
        let (shape, parallel) = (of.shape, of.parallel);
        let first = self.first(shape, block).params(parallel, layer);
        let of_latents = self.latents().flat_map(|latent| {
            let one = Init::Constant(1.0 - shape.norm.weight_offset());
            // Every rank has it whole, and computes the gradient from its own heads.
            let norm = parallel.partial(ParamSpec::new(norm_name(block, latent.name), [latent.width], one, layer));
            [norm].into_iter().chain(self.of_latent(shape, block, &latent).params(parallel, layer))
        });
        let last = self.last(shape, block).params(parallel, layer);
        first.into_iter().chain(of_latents).chain(last).collect()
    }

    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart> {
        let (shape, parallel, head) = (builder.of.shape, builder.of.parallel, self.0.head);
        let heads = shape.heads / parallel.size();
        let own_heads = DropoutPart { first_head: parallel.rank() * heads, ..DropoutPart::default() };
        let first = self.first(shape, block).build_in_block(builder, block);
        // Before latents lie the queries of heads, or nothing.
        let mut column = if self.0.query_rank.is_some() { 0 } else { heads * head.query() };
        let low_rank = |latent: LatentSpec| {
            let weight = builder.params.get(&norm_name(block, latent.name));
            let norm = NormLayer { kind: shape.norm, weight, bias: None, eps: EPS, recompute: false };
            let up = self.of_latent(shape, block, &latent).build_in_block(builder, block);
            column += latent.width;
            LowRank { column: column - latent.width, norm, up }
        };
        let mut low_ranks: Vec<LowRank> = self.latents().map(low_rank).collect();
        let Some(keys_values) = low_ranks.pop() else { unreachable!("keys and values follow from a latent") };
        let core = AttentionCore::build(builder, block, heads, head.packed());
        let Some(rotary) = builder.step.rotary.of(core.mask).copied() else {
            unreachable!("latent attention goes with rotary positions")
        };
        Box::new(LatentAttention {
            head,
            first,
            queries: low_ranks.pop(),
            keys_values,
            core,
            projection: self.last(shape, block).build_in_block(builder, block),
            rotary,
            here: builder.step.here.clone(),
            probabilities: builder.of.dropout(shape.attention_dropout, block + 1, 0, own_heads),
            output: builder.of.hidden_dropout(block + 1, 1),
            ranks: parallel.clone(),
            recompute: shape.recompute,
        })
    }

    fn cost(&self, shape: &GptShape, block: usize, tokens_per_sample: usize) -> TokenCost {
        let packed = shape.heads * self.0.head.packed();
        let latents: usize = self.latents().map(|latent| latent.width).sum();
        let attention = TokenCost {
            scores: packed * shape.mask(block).doubled_pairs(tokens_per_sample) / tokens_per_sample,
            // Attention reads and writes packed heads; packing them and taking values out move them once more.
            values: 2 * (4 * packed + 8 * packed) + 8 * latents,
            ..TokenCost::default()
        };
        let of_latents = self.latents().map(|latent| self.of_latent(shape, block, &latent).cost());
        let ends = [self.first(shape, block).cost(), self.last(shape, block).cost(), attention];
        of_latents.chain(ends).sum()
    }
}

/// A latent, and the product that makes heads from the latent.
struct LowRank {
    /// The latent's first column among the outputs of the first product.
    column: usize,
    norm: NormLayer,
    /// `(heads * channels, latent)`.
    up: Linear,
}

#[derive(Clone, Copy)]
struct SavedLowRank {
    norm: SavedNorm,
    input: Operand,
    adapter: Option<SavedAdapter>,
}

impl LowRank {
    /// The normed latent, `(batch, seq, latent)`, from the outputs of the first product.
    fn normed(&self, cx: &mut StepContext<'_>, projected: Tensor) -> Result<(Tensor, SavedNorm)> {
        let width = self.up.input_width();
        let latent = tensor_like(cx, "latent", &projected, width)?;
        cx.run(block(Corner { matrix: projected, row: 0, column: self.column }, Corner::first(latent), width))?;
        let (_, normed, norm) = self.norm.forward(cx, latent, None)?;
        Ok((normed, norm))
    }

    /// The channels of heads `(batch, seq, heads * channels)`, from the outputs of the first product.
    fn forward(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        projected: Tensor,
        record: Option<Tensor>,
    ) -> Result<(Tensor, SavedLowRank)> {
        let (normed, norm) = self.normed(cx, projected)?;
        let output = self.up.output(cx, name, &normed)?;
        let input = self.up.input(cx, normed, Copies::of_input(cx, true))?;
        let adapter = self.up.forward(cx, &input, output, record)?;
        Ok((output, SavedLowRank { norm, input: input.for_weight_gradient(), adapter }))
    }

    /// Writes the latent's columns of `grad_projected`, from the gradient of the channels of heads.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: SavedLowRank,
        grad: Tensor,
        grad_projected: Tensor,
    ) -> Result<()> {
        let grad = self.up.grad_output(cx, grad)?;
        let grad_normed = self.up.input_gradient(cx, "grad_normed_latent", grad.rows())?;
        self.up.backward(cx, saved.input, grad, grad_normed, saved.adapter)?;
        let mut sums = NormSums::default();
        let grad_latent = self.norm.backward(cx, &saved.norm, grad_normed, None, None, &mut sums)?;
        sums.add_up(cx)?;
        let to = Corner { matrix: grad_projected, row: 0, column: self.column };
        cx.run(block(Corner::first(grad_latent), to, grad_latent.shape.last()))
    }
}

/// Latent attention over its parameters.
struct LatentAttention {
    head: LatentHead,
    /// The first product: rows of queries of heads or of the queries' latent, then of the latent of keys and values,
    /// then of rotated channels of keys.
    first: Linear,
    /// `None`: the first product has the queries of heads.
    queries: Option<LowRank>,
    keys_values: LowRank,
    core: AttentionCore,
    /// `(hidden, heads * value)`.
    projection: Linear,
    /// `(max_seq_len, rotated / 2, 2)`, f32: see [`CausalAttention`](super::CausalAttention).
    rotary: Tensor,
    here: TokensHere,
    probabilities: DropoutLayer,
    output: DropoutLayer,
    ranks: TensorParallel,
    recompute: bool,
}

struct SavedLatent {
    /// As of grouped attention.
    normed: Option<Operand>,
    queries: Option<SavedLowRank>,
    keys_values: SavedLowRank,
    /// The outputs of the first product.
    projected: Tensor,
    attending: Attending,
    /// Of the last product: the values of all heads.
    values: Operand,
    output: Option<DropoutSite>,
    /// Of the first layer, and of the last one.
    adapters: [Option<SavedAdapter>; 2],
}

/// Packed heads, and what their backward needs.
struct PackedHeads {
    qkv: Tensor,
    queries: Option<SavedLowRank>,
    keys_values: SavedLowRank,
}

impl LatentAttention {
    fn angles(&self, cx: &StepContext<'_>) -> Tensor {
        let tokens = BatchSizes::of(cx).tokens_per_sample;
        self.rotary.narrow(self.here.first_row(tokens), tokens)
    }

    /// Packed heads from the outputs of the first product.
    fn pack(
        &self,
        cx: &mut StepContext<'_>,
        projected: Tensor,
        table: Tensor,
        record: Option<Tensor>,
    ) -> Result<PackedHeads> {
        let (queries, saved_queries) = match &self.queries {
            Some(of) => of.forward(cx, "queries", projected, record).map(|(queries, saved)| (queries, Some(saved)))?,
            None => (projected, None),
        };
        let (keys_values, saved) = self.keys_values.forward(cx, "keys_values", projected, record)?;
        let packed = tensor_like(cx, "qkv", &projected, 3 * self.core.width)?;
        let tensors = LatentTensors { queries, keys_values, rotated: projected, packed };
        cx.run(PackLatent { head: self.head, tensors, table })?;
        Ok(PackedHeads { qkv: packed, queries: saved_queries, keys_values: saved })
    }

    /// The first channels of heads; further channels are 0.
    fn resized(&self, cx: &mut StepContext<'_>, name: &'static str, input: Tensor, channels: usize) -> Result<Tensor> {
        let output = tensor_like(cx, name, &input, self.core.heads * channels)?;
        cx.run(ResizeHeads { input, output, heads: self.core.heads })?;
        Ok(output)
    }

    fn run(
        &self,
        cx: &mut StepContext<'_>,
        normed: Normed,
        samples: Samples,
        kept: Option<Attended>,
    ) -> Result<(Tensor, Saved)> {
        let (record, documents) = (samples.record, samples.apart());
        let (input, normed) = self.first.normed_input(cx, normed, !self.recompute, &self.ranks)?;
        let projected = self.first.output(cx, "latents", input.rows())?;
        let of_first = self.first.forward(cx, &input, projected, record)?;
        let PackedHeads { qkv, queries, keys_values } = self.pack(cx, projected, self.angles(cx), record)?;
        let dropout = self.probabilities.site(cx, record);
        let attended = match kept {
            Some(attended) => attended,
            None => self.core.attend(cx, qkv, documents, dropout)?,
        };
        let values = self.resized(cx, "values", attended.context, self.head.value)?;
        let names = ["attention_out", "attention_out_here"];
        let values = self.projection.input(cx, values, Copies::of_input(cx, true))?;
        let (delta, of_last) = self.projection.forward_row_parallel(cx, &values, record, names, &self.ranks)?;
        let output = self.output.site(cx, record);
        drop_in_place(cx, delta, output)?;
        let attending = Attending { qkv, attended, documents, dropout };
        let values = values.for_weight_gradient();
        let adapters = [of_first, of_last];
        let saved = SavedLatent { normed, queries, keys_values, projected, attending, values, output, adapters };
        Ok((delta, Saved::new(saved)))
    }
}

impl BlockPart for LatentAttention {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)> {
        self.run(cx, normed, samples, None)
    }

    fn attended(&self, saved: &Saved) -> Option<Attended> {
        Some(saved.get::<SavedLatent>().attending.attended)
    }

    fn for_backward(&self, saved: &Saved) -> Vec<Tensor> {
        let SavedLatent { normed, queries, keys_values, attending, values, .. } = saved.get();
        let of_latents = queries.iter().chain([keys_values]).map(|saved| &saved.input);
        let operands = normed.iter().chain([values]).chain(of_latents).filter_map(Operand::of_weight_gradient);
        attending.attended.tensors().into_iter().chain([attending.qkv]).chain(operands).collect()
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
        let saved: &SavedLatent = saved.get();
        let grad_delta = dropout_backward(cx, "grad_attention_out", grad, saved.output)?;
        let projection = &self.projection;
        let grad_delta = projection.gathered_grad_output(cx, "all_grad_attention_out", grad_delta, &self.ranks)?;
        // Only the weight gradient at the end reads it: with sequence parallelism a pass gathers it beside products.
        let normed = input.gather(cx, "all_normed_1", saved.normed, &self.first, &self.ranks)?;
        let sent = self.core.send(cx, saved.attending.qkv, saved.attending.documents)?;
        let grad_values = projection.input_gradient(cx, "grad_values", grad_delta.rows())?;
        let [of_first, of_last] = saved.adapters;
        projection.backward(cx, saved.values, grad_delta, grad_values, of_last)?;
        let context = self.resized(cx, "grad_context", grad_values, self.head.packed())?;
        let qkv = cx.tensor("grad_qkv", saved.attending.qkv.shape, grad.dtype)?;
        self.core.attend_backward(cx, saved.attending, Some(sent), AttentionGrads { context, qkv })?;

        let grad_projected = cx.tensor("grad_latents", saved.projected.shape, grad.dtype)?;
        let grad_queries = match &self.queries {
            Some(of) => tensor_like(cx, "grad_queries", &grad_projected, of.up.width())?,
            None => grad_projected,
        };
        let grad_keys_values = tensor_like(cx, "grad_keys_values", &grad_projected, self.keys_values.up.width())?;
        let tensors = LatentTensors {
            queries: grad_queries,
            keys_values: grad_keys_values,
            rotated: grad_projected,
            packed: qkv,
        };
        cx.run(PackLatentBackward { head: self.head, tensors, table: self.angles(cx) })?;
        self.keys_values.backward(cx, saved.keys_values, grad_keys_values, grad_projected)?;
        if let (Some(of), Some(saved)) = (&self.queries, saved.queries) {
            of.backward(cx, saved, grad_queries, grad_projected)?;
        }
        let names = ["grad_normed_1", "grad_normed_1_here"];
        let grad_projected = self.first.grad_output(cx, grad_projected)?;
        self.first.backward_column_parallel(cx, normed, grad_projected, of_first, names, &self.ranks)
    }

    fn decode(&self, cx: &mut StepContext<'_>, normed: Tensor, step: &DecodeStep) -> Result<Tensor> {
        let Some(table) = step.angles.of(self.core.mask).copied() else {
            unreachable!("latent attention goes with rotary positions")
        };
        let projected = self.first.output(cx, "latents", &normed)?;
        let input = self.first.input(cx, normed, Copies::Rows)?;
        self.first.forward(cx, &input, projected, None)?;
        let Some(cache) = step.cache else { unreachable!("attention has a cache width, so it has a cache") };
        let queries = match &self.queries {
            Some(of) => of.forward(cx, "queries", projected, None)?.0,
            None => projected,
        };
        let (latents, _) = self.keys_values.normed(cx, projected)?;
        let weight = self.keys_values.up.adapted_weight(cx)?;
        let values = tensor_like(cx, "values", &projected, self.core.heads * self.head.value)?;
        cx.run(CachedLatentAttention {
            head: self.head,
            queries,
            latents,
            rotated: projected,
            table,
            weight,
            cache,
            start: step.start,
            output: values,
            scores: self.core.scores,
            mask: self.core.mask,
        })?;
        let delta = self.projection.output(cx, "attention_out", &values)?;
        let values = self.projection.input(cx, values, Copies::Rows)?;
        self.projection.forward(cx, &values, delta, None)?;
        Ok(delta)
    }

    fn cache_width(&self) -> Option<usize> {
        Some(self.keys_values.up.input_width() + self.head.rotated)
    }

    fn computes_input(&self) -> bool {
        self.first.computes_input(&self.ranks)
    }

    fn leave_bias_to_norm(&mut self) -> Option<Param> {
        self.projection.leave_bias_to_norm(&self.output, &self.ranks)
    }
}
