//! A transformer block: norm, attention, norm, feed-forward. The residual adds happen inside the norms, so a block hands
//! on the residual stream and what is still to be added to it.

use device::ops::{
    Activation, ActivationKind, Attention, AttentionBackward, Dropout, DropoutSite, Epilogue, Gemm, Rotary, SwiGlu,
    SwiGluBackward,
};
use device::{DType, Tensor};
use graph_manager::Result;

use super::linear::{Linear, PendingGrads, rows_of};
use super::norm::{NormLayer, SavedNorm};
use super::tensor_parallel::Share;
use super::{Dropouts, FeedForward, Hidden, Layer, undropped};
use crate::params::Param;
use crate::step_policy::StepContext;

pub(crate) struct Block {
    /// Absent in the model that proves the data need attention.
    pub(crate) attention: Option<AttentionHalf>,
    pub(crate) feed_forward: FeedForwardHalf,
}

pub(crate) struct AttentionHalf {
    pub(crate) norm: NormLayer,
    /// `((heads + 2 kv_heads) * head_dim, hidden)`: rows of queries, then keys, then values.
    pub(crate) qkv: Linear,
    /// `(hidden, heads * head_dim)`.
    pub(crate) projection: Linear,
    /// Of this rank, as `kv_heads`.
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// `(seq, head_dim / 2, 2)`, f32: cosines and sines; absent where positions are not rotary.
    pub(crate) rotary: Option<Tensor>,
    pub(crate) probabilities: Dropouts,
    pub(crate) output: Dropouts,
    pub(crate) share: Share,
}

pub(crate) struct FeedForwardHalf {
    pub(crate) norm: NormLayer,
    pub(crate) kind: FeedForward,
    /// `(ffn, hidden)`; with SwiGLU `(2 ffn, hidden)`: rows of the gate, then of what it gates.
    pub(crate) up: Linear,
    /// `(hidden, ffn)`.
    pub(crate) down: Linear,
    pub(crate) output: Dropouts,
    pub(crate) share: Share,
    /// Backward computes the activation again instead of keeping it.
    pub(crate) recompute: bool,
}

#[derive(Clone, Copy)]
struct SavedAttention {
    norm: SavedNorm,
    qkv: Tensor,
    context: Tensor,
    stats: Tensor,
    probabilities: Option<DropoutSite>,
    output: Option<DropoutSite>,
}

#[derive(Clone, Copy)]
pub(crate) struct SavedFeedForward {
    norm: SavedNorm,
    pre: Tensor,
    /// Unless it is computed again.
    activated: Option<Tensor>,
    output: Option<DropoutSite>,
}

impl Block {
    /// What lies before the feed-forward layer, and what that keeps.
    fn attend(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Option<SavedAttention>)> {
        match &self.attention {
            Some(attention) => attention.forward(cx, input).map(|(hidden, saved)| (hidden, Some(saved))),
            None => Ok((input, None)),
        }
    }

    /// As forward for what backward needs: the output is left out, and with it a third of the products.
    pub(crate) fn prepare_backward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<()> {
        let (hidden, saved_attention) = self.attend(cx, input)?;
        let (_, _, saved) = self.feed_forward.activate(cx, hidden)?;
        cx.save_for_backward((saved_attention, saved))?;
        Ok(())
    }
}

impl Layer for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let (hidden, saved_attention) = self.attend(cx, input)?;
        let (output, saved) = self.feed_forward.forward(cx, hidden)?;
        cx.save_for_backward((saved_attention, saved))?;
        Ok(output)
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let (saved_attention, saved): (Option<SavedAttention>, SavedFeedForward) = cx.saved()?;
        let summed =
            self.attention.as_ref().zip(saved_attention.as_ref()).and_then(|(half, saved)| half.summed_bias(saved));
        let (grad, up_grads) = self.feed_forward.backward(cx, grad, &saved, summed)?;
        match (&self.attention, &saved_attention) {
            (Some(attention), Some(saved)) => attention.backward(cx, grad, saved, up_grads),
            _ => up_grads.compute(cx).map(|()| grad),
        }
    }
}

impl AttentionHalf {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, SavedAttention)> {
        let (batch, seq) = self.share.tokens;
        let dtype = input.x.dtype;
        let (x, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let all_normed = self.share.all_rows(cx, "all_normed", normed)?;
        let qkv = self.share.tensor(cx, "qkv", self.qkv.width(), dtype)?;
        self.qkv.forward(cx, all_normed, qkv)?;
        self.rotate(cx, qkv, false)?;
        let context = self.share.tensor(cx, "context", self.projection.input_width(), dtype)?;
        let stats = cx.tensor("attention_stats", [batch, self.heads, seq], DType::F32)?;
        let probabilities = self.probabilities.site(cx, input.record);
        cx.run(Attention {
            qkv,
            output: context,
            stats,
            heads: self.heads,
            kv_heads: self.kv_heads,
            dropout: probabilities,
        })?;
        let delta =
            self.projection.forward_shared(cx, context, ["attention_out", "attention_out_here"], &self.share)?;
        let output = self.output.site(cx, input.record);
        if let Some(site) = output {
            cx.run(Dropout { input: delta, output: delta, site })?;
        }
        let saved = SavedAttention { norm, qkv, context, stats, probabilities, output };
        Ok((Hidden { x, delta: Some(delta), ..input }, saved))
    }

    /// `up_grads` are of the feed-forward layer's first matrix.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        saved: &SavedAttention,
        up_grads: PendingGrads,
    ) -> Result<Tensor> {
        let grad_delta = undropped(cx, "grad_attention_out", grad, saved.output)?;
        let grad_delta = self.share.all_rows_beside(cx, "all_grad_attention_out", grad_delta)?;
        up_grads.compute(cx)?;
        let grad_delta = grad_delta.join(cx)?;

        let normed = self.norm.output(cx, &saved.norm)?;
        let normed = self.share.all_rows_beside(cx, "all_normed_1", normed)?;
        let grad_context = cx.tensor("grad_context", saved.context.shape, grad.dtype)?;
        self.projection.backward_input(cx, grad_delta, grad_context, Epilogue::None)?;
        let bias = self.projection.bias.filter(|_| self.summed_bias(saved).is_none());
        let projection = Linear { bias, ..self.projection };
        let projection_grads =
            projection.backward_parameters_beside(cx, saved.context, grad_delta, self.share.is_shared())?;
        let grad_qkv = cx.tensor("grad_qkv", saved.qkv.shape, grad.dtype)?;
        cx.run(AttentionBackward {
            qkv: saved.qkv,
            output: saved.context,
            stats: saved.stats,
            grad_output: grad_context,
            grad_qkv,
            heads: self.heads,
            kv_heads: self.kv_heads,
            dropout: saved.probabilities,
        })?;
        self.rotate(cx, grad_qkv, true)?;
        let names = ["grad_normed_1", "grad_normed_1_here"];
        let (normed, grad_normed) = self.qkv.backward_input_shared(cx, normed, grad_qkv, names, &self.share)?;
        projection_grads.compute(cx)?;
        self.qkv.backward_parameters(cx, normed, grad_qkv)?;
        let grad_normed = grad_normed.join(cx)?;
        // What it added is another layer's output, whose bias has its gradient from that layer's own backward: a layer's
        // bucket is reduced while the next one runs.
        self.norm.backward(cx, &saved.norm, grad_normed, Some(grad), None)
    }

    /// The projection's bias, if the norm after it sums its gradient: without dropout in between, and with all rows here,
    /// that is the gradient of the residual stream, which the norm has just computed.
    fn summed_bias(&self, saved: &SavedAttention) -> Option<Param> {
        self.projection.bias.filter(|_| saved.output.is_none() && !self.share.parallel.cuts_rows())
    }

    /// Turns queries and keys by their positions, in place; `inverse` turns their gradients back.
    fn rotate(&self, cx: &StepContext<'_>, qkv: Tensor, inverse: bool) -> Result<()> {
        let Some(table) = self.rotary else { return Ok(()) };
        cx.run(Rotary { qkv, table, heads: self.heads, kv_heads: self.kv_heads, inverse })
    }
}

impl FeedForwardHalf {
    pub(crate) fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, SavedFeedForward)> {
        let (x, activated, saved) = self.activate(cx, input)?;
        let delta = self.down.forward_shared(cx, activated, ["ffn_out", "ffn_out_here"], &self.share)?;
        if let Some(site) = saved.output {
            cx.run(Dropout { input: delta, output: delta, site })?;
        }
        Ok((Hidden { x, delta: Some(delta), ..input }, saved))
    }

    /// What comes before the second product: the residual stream, the activated values, and what backward needs.
    fn activate(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Tensor, Tensor, SavedFeedForward)> {
        let (x, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let all_normed = self.share.all_rows(cx, "all_normed", normed)?;
        let pre = rows_of(cx, "pre_activation", &all_normed, self.up.width())?;
        let activated = rows_of(cx, "activated", &all_normed, self.down.input_width())?;
        match (self.kind, self.up.bias) {
            (FeedForward::Gelu, Some(bias)) => {
                let epilogue = Epilogue::BiasGelu { bias: bias.weight, pre };
                cx.run(Gemm::linear(all_normed, self.up.weight.weight, activated, epilogue))?;
            }
            (FeedForward::Gelu, None) => {
                self.up.forward(cx, all_normed, pre)?;
                cx.run(Activation { kind: ActivationKind::Gelu, input: pre, output: activated })?;
            }
            (FeedForward::SwiGlu, _) => {
                self.up.forward(cx, all_normed, pre)?;
                cx.run(SwiGlu { input: pre, output: activated })?;
            }
        }
        let output = self.output.site(cx, input.record);
        let saved = SavedFeedForward { norm, pre, activated: (!self.recompute).then_some(activated), output };
        Ok((x, activated, saved))
    }

    /// The gradient of the residual stream before, and what is left to compute beside a gather that follows. `delta_bias`
    /// is that of the layer whose output the norm added, where the norm is to sum its gradient.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        saved: &SavedFeedForward,
        delta_bias: Option<Param>,
    ) -> Result<(Tensor, PendingGrads)> {
        let grad_delta = undropped(cx, "grad_ffn_out", grad, saved.output)?;
        let grad_delta = self.share.all_rows(cx, "all_grad_ffn_out", grad_delta)?;
        let normed = self.norm.output(cx, &saved.norm)?;
        let normed = self.share.all_rows_beside(cx, "all_normed_2", normed)?;
        let grad_pre = cx.tensor("grad_pre_activation", saved.pre.shape, grad.dtype)?;
        // Where it was not kept, what reads `pre` anyway computes it again, to the same bits.
        let (activated, again) = match saved.activated {
            Some(kept) => (kept, None),
            None => {
                let again = rows_of(cx, "activated", &saved.pre, self.down.input_width())?;
                (again, Some(again))
            }
        };
        match self.kind {
            FeedForward::Gelu => {
                let through_gelu = Epilogue::GeluBackward { pre: saved.pre, activated: again };
                self.down.backward_input(cx, grad_delta, grad_pre, through_gelu)?;
            }
            FeedForward::SwiGlu => {
                let grad_output = cx.tensor("grad_activated", activated.shape, grad.dtype)?;
                self.down.backward_input(cx, grad_delta, grad_output, Epilogue::None)?;
                cx.run(SwiGluBackward { input: saved.pre, grad_output, grad_input: grad_pre, output: again })?;
            }
        }
        let down_grads = self.down.backward_parameters_beside(cx, activated, grad_delta, self.share.is_shared())?;
        let names = ["grad_normed_2", "grad_normed_2_here"];
        let (normed, grad_normed) = self.up.backward_input_shared(cx, normed, grad_pre, names, &self.share)?;
        down_grads.compute(cx)?;
        // A gather comes next where rows are cut; elsewhere the sum under way is the last transfer.
        let up_grads = self.up.backward_parameters_beside(cx, normed, grad_pre, self.share.parallel.cuts_rows())?;
        let grad_normed = grad_normed.join(cx)?;
        let grad = self.norm.backward(cx, &saved.norm, grad_normed, Some(grad), delta_bias)?;
        Ok((grad, up_grads))
    }
}
