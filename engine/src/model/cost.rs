//! What the head of a transformer costs beside a block, so that the parts of a pipeline can be balanced.
//!
//! The time of a token, forward and backward, on an H200 in bf16. A block is a dozen short operations one after the other:
//! products, and between them norms, attention and the activation, which move more than they multiply. It is taken to need
//! the time of its multiplications and that of its bytes. The head is one product tens of thousands wide, which is taken to
//! hide one behind the other: it needs the longer of the two. What the tokens of a microbatch share, such as reading the
//! weights, is left out.

use super::GptShape;

/// Floating-point operations a second: what bf16 products achieve on an H200, whose data sheet says 989 TFLOP/s.
const FLOPS: f64 = 650e12;
/// Values of bf16 read or written a second: 4 TB/s, which kernels achieve of the 4.8 on an H200's data sheet.
const VALUES: f64 = 4e12 / 2.0;

impl GptShape {
    /// How many blocks' time the head takes.
    pub fn head_in_blocks(&self) -> f64 {
        let (multiplications, values) = self.block();
        let block = seconds(multiplications) + values as f64 / VALUES;
        let (multiplications, values) = self.head();
        seconds(multiplications).max(values as f64 / VALUES) / block
    }

    /// Multiplications of a block's forward for a token, and values that forward and backward read and write.
    fn block(&self) -> (usize, usize) {
        let GptShape { hidden, ffn, seq, .. } = *self;
        let (qkv, up) = (self.qkv_width(), self.up_width());
        let mut multiplications = hidden * (up + ffn);
        // A norm also adds to the residual stream: two tensors in and two out, and in backward three in and one out.
        let norm = 8 * hidden;
        let activation = (up + ffn) + (2 * up + ffn);
        let mut values = norm + product(hidden, up) + activation + product(ffn, hidden);
        if self.attention {
            // Causal: of scores and of weighted values, half.
            multiplications += hidden * (qkv + hidden + seq);
            let attention = (qkv + hidden) + (2 * qkv + 2 * hidden);
            values += norm + product(hidden, qkv) + attention + product(hidden, hidden);
        }
        (multiplications, values)
    }

    /// As [`GptShape::block`], of the head: the loss reads the logits and leaves their gradient in their place.
    fn head(&self) -> (usize, usize) {
        let (hidden, vocab) = (self.hidden, self.padded_vocab);
        (hidden * vocab, product(hidden, vocab) + 2 * vocab)
    }
}

/// Values that a linear layer reads and writes for a token: its input and output, once for each of three products.
fn product(input: usize, output: usize) -> usize {
    3 * (input + output)
}

/// The time of so many multiplications in a forward: an addition with each, and twice as much in backward.
fn seconds(multiplications: usize) -> f64 {
    6.0 * multiplications as f64 / FLOPS
}

#[cfg(test)]
mod tests {
    use device::DType;
    use device::ops::NormKind;

    use super::*;
    use crate::layer_partition::balanced_blocks;
    use crate::model::{FeedForward, Position};

    fn gpt2_350m() -> GptShape {
        GptShape {
            layers: 24,
            hidden: 1024,
            heads: 16,
            kv_heads: 16,
            ffn: 4096,
            vocab: 50257,
            padded_vocab: 50304,
            seq: 1024,
            batch: 1,
            tied: true,
            attention: true,
            norm: NormKind::Layer,
            norm_eps: 1e-5,
            feed_forward: FeedForward::Gelu,
            position: Position::Learned,
            bias: true,
            init_std: 0.02,
            scaled_residual_init: true,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            recompute: false,
            loss_pieces: 1,
            seed: 0,
            dtype: DType::Bf16,
        }
    }

    #[test]
    fn the_head_of_gpt2_350m_weighs_2_to_3_blocks_and_four_stages_have_7_7_7_and_3() {
        // With four sequences of 1024 a microbatch it weighed 2.3 on H200s; by multiplications alone it is 3.8.
        let head = gpt2_350m().head_in_blocks();
        assert!((2.0..3.0).contains(&head), "{head}");
        assert_eq!(balanced_blocks(24, 4, head), [7, 7, 7, 3]);
    }

    #[test]
    fn wide_blocks_weigh_what_they_multiply_and_narrow_ones_what_they_move() {
        let shape = gpt2_350m();
        let wide = GptShape { hidden: 1 << 17, ffn: 1 << 19, ..shape.clone() };
        let multiplications = wide.head().0 as f64 / wide.block().0 as f64;
        assert!((wide.head_in_blocks() / multiplications - 1.0).abs() < 0.01);
        let narrow = GptShape { hidden: 16, ffn: 64, seq: 16, ..shape };
        let values = narrow.head().1 as f64 / narrow.block().1 as f64;
        assert!((narrow.head_in_blocks() / values - 1.0).abs() < 0.05);
    }
}
