//! Attention of new tokens to all tokens so far. Keys and values are in a cache.

use device::Tensor;
use device::ops::CachedAttention;
use graph_manager::Result;

use super::CausalAttention;
use super::sinks::Sinks;
use crate::fp8::Copies;
use crate::model::buffers::tensor_like;
use crate::model::part::DecodeStep;
use crate::step_policy::StepContext;

impl CausalAttention {
    /// Keys and values of a token: `2 kv_heads * head_dim`.
    pub(super) fn keys_and_values(&self) -> usize {
        self.qkv.width() - self.projection.input_width()
    }

    /// Forward of new tokens. Their keys and values are added to the cache. Normed values and result are
    /// `(1, rows, hidden)`.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn decode_cached(&self, cx: &mut StepContext<'_>, normed: Tensor, step: &DecodeStep) -> Result<Tensor> {
        let Some(cache) = step.cache else { unreachable!("attention has a cache width, so it has a cache") };
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let projected_qkv = self.qkv.output(cx, "qkv", &normed)?;
        let input = self.qkv.input(cx, normed, Copies::Rows)?;
        self.qkv.forward(cx, &input, projected_qkv, None)?;
        let qkv = self.make_ready(cx, projected_qkv, step.angles.of(self.mask).copied())?.qkv;
        let context = tensor_like(cx, "context", &qkv, self.projection.input_width())?;
        let (start, scores, mask) = (step.start, self.scores, self.mask);
        let sinks = self.sinks.as_ref().map(Sinks::of_all);
        cx.run(CachedAttention { qkv, cache, start, output: context, heads, kv_heads, scores, mask, sinks })?;
        let delta = self.projection.output(cx, "attention_out", &context)?;
        let projected = self.projection.input(cx, context, Copies::Rows)?;
        self.projection.forward(cx, &projected, delta, None)?;
        Ok(delta)
    }
}
