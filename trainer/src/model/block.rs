//! A transformer block: norm, attention, norm, feed-forward. The residual adds happen inside the norms, so a block hands
//! on the residual stream and what is still to be added to it.

use device::ops::{
    Activation, ActivationKind, Attention, AttentionBackward, BiasGrad, Dropout, DropoutSite, Epilogue, Gemm, Norm,
    NormBackward, NormKind, Rotary, SwiGlu, SwiGluBackward,
};
use device::{DType, Tensor};
use graph_manager::{Layer, Result, StepContext};

use super::{Dropouts, FeedForward, Hidden, TensorParallel};
use crate::params::Param;

/// A linear layer's parameters, or this rank's part of them: weight `(out, in)` and, where there is one, bias `(out)`.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
}

/// A LayerNorm's or RMSNorm's parameters, `(hidden)` each; an RMSNorm has no bias.
#[derive(Clone, Copy)]
pub(crate) struct NormLayer {
    pub(crate) kind: NormKind,
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
    pub(crate) eps: f32,
    /// Backward computes the normed values again instead of keeping them.
    pub(crate) recompute: bool,
}

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

/// What a half of a block knows of the ranks it is shared with.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) parallel: TensorParallel,
    /// Samples of a microbatch and tokens of a sample, whatever part of the rows is here.
    pub(crate) tokens: (usize, usize),
}

impl Share {
    /// See [`TensorParallel::all_rows`].
    pub(crate) fn all_rows(&self, cx: &mut StepContext<'_>, name: &'static str, here: Tensor) -> Result<Tensor> {
        self.parallel.all_rows(cx, name, here, self.tokens)
    }

    /// A buffer over all rows of the microbatch.
    pub(crate) fn tensor(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        width: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        let (batch, seq) = self.tokens;
        cx.tensor(name, [batch, seq, width], dtype)
    }
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

/// What a norm keeps for its backward: its input `(batch, seq, hidden)`, statistics `(batch * seq)`, and its output
/// unless that is computed again.
#[derive(Clone, Copy)]
pub(crate) struct SavedNorm {
    input: Tensor,
    /// LayerNorm only.
    mean: Option<Tensor>,
    rstd: Tensor,
    output: Option<Tensor>,
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
        cx.keep((saved_attention, saved));
        Ok(())
    }
}

impl Layer<Hidden> for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let (hidden, saved_attention) = self.attend(cx, input)?;
        let (output, saved) = self.feed_forward.forward(cx, hidden)?;
        cx.keep((saved_attention, saved));
        Ok(output)
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let (saved_attention, saved): (Option<SavedAttention>, SavedFeedForward) = cx.kept();
        let summed =
            self.attention.as_ref().zip(saved_attention.as_ref()).and_then(|(half, saved)| half.summed_bias(saved));
        let grad = self.feed_forward.backward(cx, grad, &saved, summed)?;
        match (&self.attention, &saved_attention) {
            (Some(attention), Some(saved)) => attention.backward(cx, grad, saved),
            _ => Ok(grad),
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

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, saved: &SavedAttention) -> Result<Tensor> {
        let grad_delta = undropped(cx, "grad_attention_out", grad, saved.output)?;
        let grad_delta = self.share.all_rows(cx, "all_grad_attention_out", grad_delta)?;
        let grad_context = cx.tensor("grad_context", saved.context.shape, grad.dtype)?;
        let bias = self.projection.bias.filter(|_| self.summed_bias(saved).is_none());
        let projection = Linear { bias, ..self.projection };
        projection.backward(cx, saved.context, grad_delta, Some((grad_context, Epilogue::None)))?;
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
        let names = ["all_normed_1", "grad_normed_1", "grad_normed_1_here"];
        let normed = self.norm.output(cx, &saved.norm)?;
        let grad_normed = self.qkv.backward_shared(cx, normed, grad_qkv, names, &self.share)?;
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

    /// `delta_bias` is that of the layer whose output the norm added, where the norm is to sum its gradient.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        saved: &SavedFeedForward,
        delta_bias: Option<Param>,
    ) -> Result<Tensor> {
        let grad_delta = undropped(cx, "grad_ffn_out", grad, saved.output)?;
        let grad_delta = self.share.all_rows(cx, "all_grad_ffn_out", grad_delta)?;
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
        self.down.backward_parameters(cx, activated, grad_delta)?;
        let names = ["all_normed_2", "grad_normed_2", "grad_normed_2_here"];
        let normed = self.norm.output(cx, &saved.norm)?;
        let grad_normed = self.up.backward_shared(cx, normed, grad_pre, names, &self.share)?;
        self.norm.backward(cx, &saved.norm, grad_normed, Some(grad), delta_bias)
    }
}

impl Linear {
    /// Width of its output.
    pub(crate) fn width(&self) -> usize {
        self.weight.weight.shape.rows()
    }

    /// Width of its input.
    pub(crate) fn input_width(&self) -> usize {
        self.weight.weight.shape.last()
    }

    pub(crate) fn forward(&self, cx: &StepContext<'_>, input: Tensor, output: Tensor) -> Result<()> {
        self.product(cx, input, output, self.bias)
    }

    fn product(&self, cx: &StepContext<'_>, input: Tensor, output: Tensor, bias: Option<Param>) -> Result<()> {
        let epilogue = bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.weight));
        cx.run(Gemm::linear(input, self.weight.weight, output, epilogue))
    }

    /// Of a layer cut by its inputs: the sum of all ranks' products, in the rows that are here. One rank adds the bias.
    pub(crate) fn forward_shared(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        [all, here]: [&'static str; 2],
        share: &Share,
    ) -> Result<Tensor> {
        let output = rows_of(cx, all, &input, self.width())?;
        self.product(cx, input, output, share.parallel.once(self.bias))?;
        share.parallel.sum(cx, here, output)
    }

    /// Of a layer cut by its outputs: parameter gradients from the rows of `input` that are here, and the input's gradient
    /// in the same rows.
    pub(crate) fn backward_shared(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        grad_output: Tensor,
        [all_input, all_grads, here]: [&'static str; 3],
        share: &Share,
    ) -> Result<Tensor> {
        let all_rows = share.parallel.all_rows_beside(cx, all_input, input, share.tokens)?;
        let grad_input = share.tensor(cx, all_grads, self.input_width(), grad_output.dtype)?;
        self.backward_input(cx, grad_output, grad_input, Epilogue::None)?;
        let input = all_rows.join(cx)?;
        let sum = share.parallel.sum_beside(cx, here, grad_input)?;
        self.backward_parameters(cx, input, grad_output)?;
        sum.join(cx)
    }

    /// Parameter gradients, and the input's if it is wanted, through an epilogue.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        grad_output: Tensor,
        grad_input: Option<(Tensor, Epilogue)>,
    ) -> Result<()> {
        if let Some((grad_input, epilogue)) = grad_input {
            self.backward_input(cx, grad_output, grad_input, epilogue)?;
        }
        self.backward_parameters(cx, input, grad_output)
    }

    /// The input's gradient, through an epilogue.
    fn backward_input(
        &self,
        cx: &StepContext<'_>,
        grad_output: Tensor,
        grad_input: Tensor,
        epilogue: Epilogue,
    ) -> Result<()> {
        cx.run(Gemm::dgrad(grad_output, self.weight.weight, grad_input, epilogue))
    }

    /// The parameters' gradients. They may be put off: nothing in the layer may write to what they are made from.
    fn backward_parameters(&self, cx: &mut StepContext<'_>, input: Tensor, grad_output: Tensor) -> Result<()> {
        let accumulate = cx.accumulate();
        cx.defer(Gemm::wgrad(grad_output, input, self.weight.grad, accumulate))?;
        match self.bias {
            Some(bias) => cx.defer(BiasGrad { grad_output, grad_bias: bias.grad, accumulate }),
            None => Ok(()),
        }
    }
}

impl NormLayer {
    /// Adds what is to be added to the residual stream and normalises it: the new stream, the normed values, and what
    /// backward needs.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        x: Tensor,
        delta: Option<Tensor>,
    ) -> Result<(Tensor, Tensor, SavedNorm)> {
        let shape = x.shape;
        let normed = cx.tensor("normed", shape, x.dtype)?;
        let mean = match self.kind {
            NormKind::Layer => Some(cx.tensor("mean", [shape.rows()], DType::F32)?),
            NormKind::Rms => None,
        };
        let rstd = cx.tensor("rstd", [shape.rows()], DType::F32)?;
        let sum = match delta {
            Some(_) => Some(cx.tensor("residual", shape, x.dtype)?),
            None => None,
        };
        cx.run(Norm {
            kind: self.kind,
            input: delta.unwrap_or(x),
            residual: delta.map(|_| x),
            sum,
            weight: self.weight.weight,
            bias: self.bias.map(|bias| bias.weight),
            output: normed,
            mean,
            rstd,
            eps: self.eps,
        })?;
        let x = sum.unwrap_or(x);
        let output = (!self.recompute).then_some(normed);
        Ok((x, normed, SavedNorm { input: x, mean, rstd, output }))
    }

    /// The normed values, kept or computed again to the same bits.
    fn output(&self, cx: &mut StepContext<'_>, saved: &SavedNorm) -> Result<Tensor> {
        if let Some(output) = saved.output {
            return Ok(output);
        }
        self.forward(cx, saved.input, None).map(|(_, normed, _)| normed)
    }

    /// The residual stream's gradient: through the norm, plus what passes by it. Its sums over all tokens go to
    /// `delta_bias`.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedNorm,
        grad_output: Tensor,
        grad_residual: Option<Tensor>,
        delta_bias: Option<Param>,
    ) -> Result<Tensor> {
        let grad_input = cx.tensor("grad_residual", saved.input.shape, grad_output.dtype)?;
        cx.run(NormBackward {
            kind: self.kind,
            input: saved.input,
            weight: self.weight.weight,
            mean: saved.mean,
            rstd: saved.rstd,
            grad_output,
            grad_residual,
            grad_input,
            grad_weight: self.weight.grad,
            grad_bias: self.bias.map(|bias| bias.grad),
            grad_input_sums: delta_bias.map(|bias| bias.grad),
            accumulate: cx.accumulate(),
        })?;
        Ok(grad_input)
    }
}

/// A gradient taken back through a dropout, if there was one.
pub(crate) fn undropped(
    cx: &mut StepContext<'_>,
    name: &'static str,
    grad: Tensor,
    site: Option<DropoutSite>,
) -> Result<Tensor> {
    let Some(site) = site else { return Ok(grad) };
    let output = cx.tensor(name, grad.shape, grad.dtype)?;
    cx.run(Dropout { input: grad, output, site })?;
    Ok(output)
}

/// A tensor with the rows of another, `(batch, seq, width)`.
fn rows_of(cx: &mut StepContext<'_>, name: &'static str, like: &Tensor, width: usize) -> Result<Tensor> {
    let [batch, seq, _] = like.shape.sizes()[..] else { unreachable!("hidden states are (batch, seq, width)") };
    cx.tensor(name, [batch, seq, width], like.dtype)
}
