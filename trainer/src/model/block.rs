//! A transformer block: norm, attention, norm, feed-forward. The residual adds happen inside the norms, so a block hands
//! on the residual stream and what is still to be added to it.

use device::ops::{
    Activation, ActivationKind, Attention, AttentionBackward, BiasGrad, Dropout, DropoutSite, Epilogue, Gemm, Norm,
    NormBackward, NormKind, Rotary, SwiGlu, SwiGluBackward,
};
use device::{DType, Tensor};
use graph_manager::{Layer, Result, StepContext};

use super::{Dropouts, FeedForward, Hidden};
use crate::params::Param;

/// A linear layer's parameters: weight `(out, in)` and, where there is one, bias `(out)`.
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
    /// `(hidden, hidden)`.
    pub(crate) projection: Linear,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// `(seq, head_dim / 2, 2)`, f32: cosines and sines; absent where positions are not rotary.
    pub(crate) rotary: Option<Tensor>,
    pub(crate) probabilities: Dropouts,
    pub(crate) output: Dropouts,
}

pub(crate) struct FeedForwardHalf {
    pub(crate) norm: NormLayer,
    pub(crate) kind: FeedForward,
    /// `(ffn, hidden)`; with SwiGLU `(2 ffn, hidden)`: rows of the gate, then of what it gates.
    pub(crate) up: Linear,
    /// `(hidden, ffn)`.
    pub(crate) down: Linear,
    pub(crate) output: Dropouts,
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

impl Layer<Hidden> for Block {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let mut hidden = input;
        let mut saved_attention = None;
        if let Some(attention) = &self.attention {
            let saved;
            (hidden, saved) = attention.forward(cx, hidden)?;
            saved_attention = Some(saved);
        }
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
        let [batch, seq, hidden] = sizes(&input.x);
        let dtype = input.x.dtype;
        let (x, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let qkv = cx.tensor("qkv", [batch, seq, self.qkv.width()], dtype)?;
        self.qkv.forward(cx, normed, qkv)?;
        self.rotate(cx, qkv, false)?;
        let context = cx.tensor("context", [batch, seq, hidden], dtype)?;
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
        let delta = cx.tensor("attention_out", [batch, seq, hidden], dtype)?;
        self.projection.forward(cx, context, delta)?;
        let output = self.output.site(cx, input.record);
        if let Some(site) = output {
            cx.run(Dropout { input: delta, output: delta, site })?;
        }
        let saved = SavedAttention { norm, qkv, context, stats, probabilities, output };
        Ok((Hidden { x, delta: Some(delta), ..input }, saved))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, saved: &SavedAttention) -> Result<Tensor> {
        let [batch, seq, hidden] = sizes(&grad);
        let grad_delta = undropped(cx, "grad_attention_out", grad, saved.output)?;
        let grad_context = cx.tensor("grad_context", [batch, seq, hidden], grad.dtype)?;
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
        let grad_normed = cx.tensor("grad_normed_1", [batch, seq, hidden], grad.dtype)?;
        let normed = self.norm.output(cx, &saved.norm)?;
        self.qkv.backward(cx, normed, grad_qkv, Some((grad_normed, Epilogue::None)))?;
        // What it added is another layer's output, whose bias has its gradient from that layer's own backward: a layer's
        // bucket is reduced while the next one runs.
        self.norm.backward(cx, &saved.norm, grad_normed, Some(grad), None)
    }

    /// The projection's bias, if the norm after it sums its gradient: without dropout in between, that is the gradient of
    /// the residual stream, which the norm has just computed.
    fn summed_bias(&self, saved: &SavedAttention) -> Option<Param> {
        self.projection.bias.filter(|_| saved.output.is_none())
    }

    /// Turns queries and keys by their positions, in place; `inverse` turns their gradients back.
    fn rotate(&self, cx: &StepContext<'_>, qkv: Tensor, inverse: bool) -> Result<()> {
        let Some(table) = self.rotary else { return Ok(()) };
        cx.run(Rotary { qkv, table, heads: self.heads, kv_heads: self.kv_heads, inverse })
    }
}

impl FeedForwardHalf {
    pub(crate) fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, SavedFeedForward)> {
        let [batch, seq, hidden] = sizes(&input.x);
        let dtype = input.x.dtype;
        let (x, normed, norm) = self.norm.forward(cx, input.x, input.delta)?;
        let pre = cx.tensor("pre_activation", [batch, seq, self.up.width()], dtype)?;
        let activated = cx.tensor("activated", [batch, seq, self.down.weight.weight.shape.last()], dtype)?;
        match (self.kind, self.up.bias) {
            (FeedForward::Gelu, Some(bias)) => {
                let epilogue = Epilogue::BiasGelu { bias: bias.weight, pre };
                cx.run(Gemm::linear(normed, self.up.weight.weight, activated, epilogue))?;
            }
            (FeedForward::Gelu, None) => {
                self.up.forward(cx, normed, pre)?;
                cx.run(Activation { kind: ActivationKind::Gelu, input: pre, output: activated })?;
            }
            (FeedForward::SwiGlu, _) => {
                self.up.forward(cx, normed, pre)?;
                cx.run(SwiGlu { input: pre, output: activated })?;
            }
        }
        let delta = cx.tensor("ffn_out", [batch, seq, hidden], dtype)?;
        self.down.forward(cx, activated, delta)?;
        let output = self.output.site(cx, input.record);
        if let Some(site) = output {
            cx.run(Dropout { input: delta, output: delta, site })?;
        }
        let saved = SavedFeedForward { norm, pre, activated: (!self.recompute).then_some(activated), output };
        Ok((Hidden { x, delta: Some(delta), ..input }, saved))
    }

    /// `delta_bias` is that of the layer whose output the norm added, where the norm is to sum its gradient.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        saved: &SavedFeedForward,
        delta_bias: Option<Param>,
    ) -> Result<Tensor> {
        let [batch, seq, hidden] = sizes(&grad);
        let grad_delta = undropped(cx, "grad_ffn_out", grad, saved.output)?;
        let grad_pre = cx.tensor("grad_pre_activation", saved.pre.shape, grad.dtype)?;
        // Where it was not kept, what reads `pre` anyway computes it again, to the same bits.
        let (activated, again) = match saved.activated {
            Some(kept) => (kept, None),
            None => {
                let width = self.down.weight.weight.shape.last();
                let again = cx.tensor("activated", [batch, seq, width], grad.dtype)?;
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
        let grad_normed = cx.tensor("grad_normed_2", [batch, seq, hidden], grad.dtype)?;
        let normed = self.norm.output(cx, &saved.norm)?;
        self.up.backward(cx, normed, grad_pre, Some((grad_normed, Epilogue::None)))?;
        self.norm.backward(cx, &saved.norm, grad_normed, Some(grad), delta_bias)
    }
}

impl Linear {
    /// Width of its output.
    pub(crate) fn width(&self) -> usize {
        self.weight.weight.shape.rows()
    }

    pub(crate) fn forward(&self, cx: &StepContext<'_>, input: Tensor, output: Tensor) -> Result<()> {
        let epilogue = self.bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.weight));
        cx.run(Gemm::linear(input, self.weight.weight, output, epilogue))
    }

    /// Parameter gradients, and the input's if it is wanted, through an epilogue.
    pub(crate) fn backward(
        &self,
        cx: &StepContext<'_>,
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

    /// The parameters' gradients.
    fn backward_parameters(&self, cx: &StepContext<'_>, input: Tensor, grad_output: Tensor) -> Result<()> {
        cx.run(Gemm::wgrad(grad_output, input, self.weight.grad, cx.accumulate()))?;
        match self.bias {
            Some(bias) => cx.run(BiasGrad { grad_output, grad_bias: bias.grad, accumulate: cx.accumulate() }),
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

/// `(batch, seq, hidden)`.
fn sizes(tensor: &Tensor) -> [usize; 3] {
    let sizes = tensor.shape.sizes();
    [sizes[0], sizes[1], sizes[2]]
}
