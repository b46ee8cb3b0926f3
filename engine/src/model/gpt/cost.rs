//! The cost of a transformer: its FLOPs, and the head's time as a multiple of a block's. The stages of a pipeline are
//! balanced by this multiple.
//!
//! The time estimate is that of a token, forward and backward, on an H200 in bf16. A block is a dozen short operations
//! one after the other: products, and between them norms, attention and the activation. These move more than they
//! multiply. Its time is taken to be the sum of the time of its multiplications and of that of its bytes. The head is
//! one product tens of thousands wide. The two overlap in it: its time is taken to be the longer one. Work that the
//! tokens of a microbatch share, such as reading the weights, is left out.

use super::block::block_cost;
use super::further::further_cost;
use super::gpt;
use super::head::head_cost;
use super::shape::GptShape;
use crate::model::linear::is_adapter;
use crate::model::token_cost::TokenCost;
use crate::params::ParamSpec;

/// Floating-point operations a second that bf16 products achieve on an H200; the data sheet says 989 TFLOP/s.
const FLOPS: f64 = 650e12;
/// Values of bf16 read or written a second: kernels achieve 4 TB/s of the 4.8 on an H200's data sheet.
const VALUES: f64 = 4e12 / 2.0;

impl GptShape {
    /// Training FLOPs per token of samples of so many tokens: 6 per parameter that the token is multiplied with, each time
    /// that it is, and those of causal attention. Lookups in tables cost nothing; a tied table counts once, in the head. With adapters
    /// all other parameters are frozen: they have no gradient, so each costs 4.
    pub fn flops_per_token(&self, tokens_per_sample: usize) -> f64 {
        let specs = gpt(self.clone()).specs;
        let flops = |spec: &ParamSpec| if self.lora.is_some() && !is_adapter(&spec.name) { 4 } else { 6 };
        let multiplied = specs.iter().filter(|spec| !spec.sparse);
        let weights = |spec: &ParamSpec| spec.share_per_token * spec.whole.iter().product::<usize>() as f64;
        let flops_of_table = (6 * self.vocab * self.hidden) as f64;
        let of_weights: f64 = multiplied.map(|spec| f64::from(flops(spec)) * weights(spec)).sum();
        let attention = |block| {
            TokenCost { scores: block_cost(self, block, tokens_per_sample).scores, ..TokenCost::default() }.flops()
        };
        // The head's table is multiplied with once more in each layer that predicts a further token.
        let heads = flops_of_table * self.further_blocks().len() as f64;
        of_weights + heads + (0..self.further_blocks().end).map(attention).sum::<usize>() as f64
    }

    /// The head's time as a multiple of a block's, in samples of so many tokens: of the mean block's, if some have a
    /// window. The head runs the layers that predict further tokens.
    pub fn head_in_blocks(&self, tokens_per_sample: usize) -> f64 {
        let (head, further) = (head_cost(self), further_cost(self, tokens_per_sample));
        let heads = (1 + self.further_blocks().len()) as f64 * multiplying(head).max(moving(head));
        let last = heads + multiplying(further) + moving(further);
        let blocks: TokenCost = (0..self.layers).map(|block| block_cost(self, block, tokens_per_sample)).sum();
        last * self.layers as f64 / (multiplying(blocks) + moving(blocks))
    }
}

/// Seconds of multiplications.
fn multiplying(cost: TokenCost) -> f64 {
    cost.flops() as f64 / FLOPS
}

/// Seconds of reads and writes.
fn moving(cost: TokenCost) -> f64 {
    cost.values as f64 / VALUES
}

#[cfg(test)]
mod tests {
    use device::ops::NormKind;

    use super::*;
    use crate::layer_partition::balanced_blocks;
    use crate::model::{AttentionKind, FeedForward, FurtherTokens, Lora, LoraTarget, NormPlacement, QkNorm, Windows};
    use crate::precision::Precision;

    const SEQ: usize = 1024;

    fn gpt2_350m() -> GptShape {
        GptShape {
            layers: 24,
            hidden: 1024,
            heads: 16,
            kv_heads: 16,
            ffn: 4096,
            precision: Precision::Bf16,
            ..GptShape::default()
        }
    }

    #[test]
    fn the_head_of_gpt2_350m_weighs_2_to_3_blocks_and_four_stages_have_7_7_7_and_3() {
        // With four sequences of 1024 a microbatch it weighed 2.3 on H200s; by multiplications alone it is 3.8.
        let head = gpt2_350m().head_in_blocks(SEQ);
        assert!((2.0..3.0).contains(&head), "{head}");
        assert_eq!(balanced_blocks(24, 4, head), [7, 7, 7, 3]);
    }

    #[test]
    fn wide_blocks_weigh_what_they_multiply_and_narrow_ones_what_they_move() {
        let shape = gpt2_350m();
        let wide = GptShape { hidden: 1 << 17, ffn: 1 << 19, ..shape.clone() };
        let flops = head_cost(&wide).flops() as f64 / block_cost(&wide, 0, SEQ).flops() as f64;
        assert!((wide.head_in_blocks(SEQ) / flops - 1.0).abs() < 0.01);
        let narrow = GptShape { hidden: 16, ffn: 64, ..shape };
        let values = head_cost(&narrow).values as f64 / block_cost(&narrow, 0, 16).values as f64;
        assert!((narrow.head_in_blocks(16) / values - 1.0).abs() < 0.05);
    }

    #[test]
    fn costs_of_a_block_are_those_of_its_matrices_its_attention_and_what_lies_between() {
        let (hidden, ffn) = (1024, 4096);
        // Norms 8, QKV and projection 3 times input and output, attention 3 + 1 forward and 6 + 2 backward.
        let attention = 8 * hidden + 3 * (4 * hidden) + (4 + 8) * hidden + 3 * (2 * hidden);
        let feed_forward = |up: usize| 8 * hidden + 3 * (hidden + up) + (3 * up + 2 * ffn) + 3 * (ffn + hidden);
        let gelu = gpt2_350m();
        let expected =
            TokenCost { weights: 12 * hidden * hidden, scores: hidden * SEQ, values: attention + feed_forward(ffn) };
        assert_eq!(block_cost(&gelu, 0, SEQ), expected);
        let swiglu = GptShape { feed_forward: FeedForward::SwiGlu, attention: AttentionKind::None, ..gelu };
        let expected = TokenCost { weights: 12 * hidden * hidden, scores: 0, values: feed_forward(2 * ffn) };
        assert_eq!(block_cost(&swiglu, 0, SEQ), expected);
    }

    #[test]
    fn geglu_costs_what_swiglu_does_and_norms_around_parts_what_two_more_norms_do() {
        let swiglu = GptShape { feed_forward: FeedForward::SwiGlu, ..gpt2_350m() };
        let geglu = GptShape { feed_forward: FeedForward::GeGlu, norm: NormKind::Rms1p, ..swiglu.clone() };
        assert_eq!(block_cost(&geglu, 0, SEQ), block_cost(&swiglu, 0, SEQ));
        let around = GptShape { norm_placement: NormPlacement::Sandwich, ..geglu.clone() };
        let norms = TokenCost { values: 2 * 8 * 1024, ..TokenCost::default() };
        assert_eq!(block_cost(&around, 0, SEQ), block_cost(&geglu, 0, SEQ) + norms);
    }

    #[test]
    fn heads_wider_than_the_stream_cost_their_own_width_and_their_norms_what_they_move() {
        let (hidden, queries, keys) = (1024, 16 * 128, 8 * 128);
        let attention = |qk_norm| {
            let shape = GptShape { kv_heads: 8, head_dim: Some(128), bias: false, qk_norm, ..gpt2_350m() };
            let attention = block_cost(&shape, 0, SEQ);
            let without = block_cost(&GptShape { attention: AttentionKind::None, ..shape }, 0, SEQ);
            (attention.weights - without.weights, attention.scores, attention.values - without.values)
        };
        let (qkv, context) = (queries + 2 * keys, queries);
        let weights = hidden * qkv + context * hidden;
        let values = 8 * hidden + 3 * (hidden + qkv) + 3 * (qkv + context) + 3 * (context + hidden);
        assert_eq!(attention(None), (weights, queries * SEQ, values));
        assert_eq!(
            attention(Some(QkNorm::EachHead)),
            (weights, queries * SEQ, values + 2 * qkv + 3 * (queries + keys))
        );
    }

    #[test]
    fn a_window_costs_the_pairs_that_it_leaves_in_the_blocks_that_have_it() {
        let windows = Some(Windows { tokens: 256, pattern: vec![true, false] });
        let shape = GptShape { windows, ..gpt2_350m() };
        let scores = [0, 1].map(|block| block_cost(&shape, block, SEQ).scores);
        // The first 256 tokens see 128 on average, the others 256: twice that for the two products.
        assert_eq!(scores, [1024 * 2 * (256 * 128 + 768 * 256) / 1024, 1024 * 1024]);
        let full = gpt2_350m().flops_per_token(SEQ);
        let saved = 12 * 6 * (scores[1] - scores[0]);
        assert_eq!(shape.flops_per_token(SEQ), full - saved as f64);
    }

    #[test]
    fn a_token_costs_6_flops_for_each_parameter_it_is_multiplied_with_and_causal_attention() {
        let shape = gpt2_350m();
        // As `transformers` counts gpt2-medium, less the learned positions.
        let multiplied: usize = 354_823_168 - 1024 * 1024;
        let attention = 6 * 24 * 1024 * 1024;
        assert_eq!(shape.flops_per_token(SEQ), (6 * multiplied + attention) as f64);
        let untied = GptShape { tied: false, ..shape.clone() };
        assert_eq!(untied.flops_per_token(SEQ), shape.flops_per_token(SEQ), "a lookup costs nothing");
        let further_tokens = Some(FurtherTokens { depths: 2, factor: 0.1 });
        let further = GptShape { further_tokens, ..gpt2_350m() };
        // A block with its biases and norms, three norms, the matrix that joins, and the head's table.
        let layer = 12 * 1024 * 1024 + 13 * 1024 + 6 * 1024 + 2 * 1024 * 1024 + 50_257 * 1024;
        let more = 2 * 6 * (layer + 1024 * 1024);
        assert_eq!(further.flops_per_token(SEQ), shape.flops_per_token(SEQ) + more as f64);
        let blocks = further.head_in_blocks(SEQ) - 3.0 * shape.head_in_blocks(SEQ);
        assert!((2.2..2.6).contains(&blocks), "two blocks and their joining matrices: {blocks}");
        let lora = Lora { rank: 2, alpha: 1.0, dropout: 0.0, targets: vec![LoraTarget::AttentionOutput] };
        let adapted = GptShape { lora: Some(lora), ..gpt2_350m() };
        let adapters = 24 * 2 * (1024 + 1024);
        assert_eq!(adapted.flops_per_token(SEQ), (4 * multiplied + 6 * adapters + attention) as f64);
    }
}
