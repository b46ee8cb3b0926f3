//! The linear layers that have adapters, and the rows of each adapter in a layer's parameters.

use std::ops::Range;

use super::adapter::AdapterSpec;
use super::lora::{Lora, LoraTarget};
use crate::model::feed_forward::Experts;
use crate::model::gpt::{AttentionKind, GptShape, Latent};

/// A linear layer with adapters, or a layer of experts with adapters.
pub struct AdaptedLayer {
    /// The beginning of the names of the layer's parameters in a block.
    pub name: &'static str,
    /// The experts, which have a matrix each; 1 of a linear layer.
    pub experts: usize,
    /// By adapter: the numbers of the matrices that it covers, among the packed ones.
    groups: Vec<Range<usize>>,
    /// Rows of the packed matrices.
    packed: Vec<usize>,
}

/// An adapter of a matrix, and the rows that belong to the adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterRows {
    /// The rows of the layer's weight that the adapter covers.
    pub covered: Range<usize>,
    /// The adapter's rows of the parameter that packs `A`.
    pub a: Range<usize>,
    /// The adapter's rows of the parameter that packs `B`.
    pub b: Range<usize>,
}

impl AdaptedLayer {
    /// All adapters of a rank, by expert and then by the adapters' matrices.
    pub fn adapters(&self, rank: usize) -> Vec<AdapterRows> {
        let size = |groups: Range<usize>| self.packed[groups].iter().sum::<usize>();
        let all = size(0..self.packed.len());
        let mut adapters = Vec::new();
        for expert in 0..self.experts {
            let mut first = 0;
            for (number, groups) in self.groups.iter().enumerate() {
                let (start, rows) = (expert * all + size(0..groups.start), size(groups.clone()));
                let (a, b) = ((expert * self.groups.len() + number) * rank, first * self.experts + expert * rows);
                adapters.push(AdapterRows { covered: start..start + rows, a: a..a + rank, b: b..b + rows });
                first += rows;
            }
        }
        adapters
    }
}

/// A layer that may have adapters: its name, its experts, the adapters, and the rows of its packed matrices.
type Adaptable = (&'static str, usize, Option<AdapterSpec>, Vec<usize>);

impl Latent {
    /// The target that the layer before attention packs first: queries, or their latent.
    pub fn queries(&self) -> LoraTarget {
        if self.query_rank.is_some() { LoraTarget::QueryLatent } else { LoraTarget::Query }
    }

    /// The layers before attention that may have adapters.
    fn adapted(&self, lora: &Lora, heads: usize) -> Vec<Adaptable> {
        let Latent { query_rank, rank, head } = *self;
        let queries = heads * head.query();
        let first = vec![query_rank.unwrap_or(queries), rank + head.rotated];
        let of_query_latent = query_rank.map(|_| ("attn.q_b", 1, lora.of_query_latent(), vec![queries]));
        let of_latent = ("attn.kv_b", 1, lora.of_key_value_latent(), vec![heads * (head.plain + head.value)]);
        let first = ("attn.c_attn", 1, lora.of_latents(self.queries()), first);
        [first].into_iter().chain(of_query_latent).chain([of_latent]).collect()
    }
}

impl Lora {
    /// The linear layers of a block with adapters.
    pub fn adapted(&self, shape: &GptShape, block: usize) -> Vec<AdaptedLayer> {
        let groups = shape.feed_forward.packed();
        let mut layers = match shape.attention {
            AttentionKind::Latent(latent) => latent.adapted(self, shape.heads),
            _ => {
                let (queries, keys) = (shape.heads * shape.head_dim(), shape.kv_heads * shape.head_dim());
                vec![("attn.c_attn", 1, self.of_qkv(), vec![queries, keys, keys])]
            }
        };
        layers.push(("attn.c_proj", 1, self.of_attention_output(), vec![shape.hidden]));
        let mut feed_forward = |names: [&'static str; 2], experts: usize, width: usize| {
            layers.push((names[0], experts, self.of_up(groups), vec![width; groups]));
            layers.push((names[1], experts, self.of_down(), vec![shape.hidden]));
        };
        match shape.block_experts(block) {
            None => feed_forward(["mlp.c_fc", "mlp.c_proj"], 1, shape.ffn),
            Some(&Experts { count, ffn, shared_ffn, .. }) => {
                feed_forward(["mlp.experts.c_fc", "mlp.experts.c_proj"], count, ffn);
                if shared_ffn > 0 {
                    feed_forward(["mlp.shared.c_fc", "mlp.shared.c_proj"], 1, shared_ffn);
                }
            }
        }
        let adapted = layers.into_iter().filter_map(|(name, experts, spec, packed)| {
            Some(AdaptedLayer { name, experts, groups: spec?.groups, packed })
        });
        adapted.collect()
    }
}
