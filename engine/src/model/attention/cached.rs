//! Attention of new tokens to all tokens so far. Keys and values are in a cache.

use device::Tensor;
use device::ops::CachedAttention;
use graph_manager::Result;

use super::attend::AttentionCore;
use super::sinks::Sinks;
use crate::model::buffers::tensor_like;
use crate::model::part::DecodeStep;
use crate::step_policy::StepContext;

impl AttentionCore {
    /// Values of a token in the cache: its keys and values.
    pub(super) fn cache_width(&self) -> usize {
        2 * self.kv_heads * (self.width / self.heads)
    }

    /// The output for new tokens, of packed queries, keys and values `(1, rows, width)`. These keys and values are added to
    /// the cache.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn decode(&self, cx: &mut StepContext<'_>, qkv: Tensor, step: &DecodeStep) -> Result<Tensor> {
        let Some(cache) = step.cache else { unreachable!("attention has a cache width, so it has a cache") };
        let &AttentionCore { heads, kv_heads, scores, mask, .. } = self;
        let output = tensor_like(cx, "context", &qkv, self.width)?;
        let (start, sinks) = (step.start, self.sinks.as_ref().map(Sinks::of_all));
        cx.run(CachedAttention { qkv, cache, start, output, heads, kv_heads, scores, mask, sinks })?;
        Ok(output)
    }
}
