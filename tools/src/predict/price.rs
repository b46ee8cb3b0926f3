//! The cost of an operation on a GPU.

use device::ops::{Attention, AttentionBackward, Gemm, Scores};
use device::{DType, Op, Tensor};

use crate::predict::card::{Card, Pass, at};

/// The cost of an operation without waits for others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    /// Seconds before the operation works. Meanwhile the GPU may do other work.
    pub(super) latency: f64,
    /// Seconds that the operation takes the GPU.
    pub(super) work: f64,
}

/// The price of an operation that is not a transfer. `tf32`: products of f32 are rounded to TF32.
pub(super) fn price(op: &Op, card: &Card, tf32: bool) -> Price {
    let bytes_per_second = card.memory.gb_per_s * 1e9;
    let work = match op {
        Op::Gemm(gemm) => product(op, gemm, card, tf32),
        // By the rows that all experts have together: the kernels' shares of them are not known.
        Op::GroupedGemm(gemm) => {
            (op.flops() / product_rate(gemm.a.dtype, card, tf32)).max(op.bytes() / bytes_per_second)
        }
        Op::Attention(Attention { qkv, keys, heads, kv_heads, scores, documents, .. }) => {
            let divides_documents = keys.is_some() && documents.is_some();
            let (heads, kv_heads, scores) = (*heads, *kv_heads, *scores);
            let attended = Attended { qkv, heads, kv_heads, scores, divides_documents, pass: Pass::Forward };
            op.flops() / attended.rate(op.flops(), card, tf32)
        }
        Op::AttentionBackward(AttentionBackward { qkv, keys, heads, kv_heads, scores, documents, .. }) => {
            let divides_documents = keys.is_some() && documents.is_some();
            let (heads, kv_heads, scores) = (*heads, *kv_heads, *scores);
            let attended = Attended { qkv, heads, kv_heads, scores, divides_documents, pass: Pass::Backward };
            op.flops() / attended.rate(op.flops(), card, tf32)
        }
        // The marks of the watch and the step's scalars move nothing: they are latency alone.
        _ => op.bytes() / bytes_per_second,
    };
    let ramp = if work > 0.0 { card.kernel.ramp_us * 1e-6 } else { 0.0 };
    Price { latency: card.kernel.latency_us * 1e-6, work: work + ramp }
}

/// The time of a product, the longer of multiplying, and of reading and writing. An epilogue's tensors come on top:
/// the library's epilogues overlap with little, and a kernel of their own reads as much.
fn product(op: &Op, gemm: &Gemm, card: &Card, tf32: bool) -> f64 {
    let bytes_per_second = card.memory.gb_per_s * 1e9;
    let epilogue = gemm.epilogue_bytes() as f64;
    let multiplying = op.flops() / product_rate(gemm.a.dtype, card, tf32);
    multiplying.max((op.bytes() - epilogue) / bytes_per_second) + epilogue / bytes_per_second
}

/// FLOP/s of products.
fn product_rate(dtype: DType, card: &Card, tf32: bool) -> f64 {
    let rates = card.products;
    1e12 * match dtype {
        DType::Bf16 => rates.bf16_tflops,
        dtype if dtype.is_fp8() => rates.fp8_tflops,
        _ if tf32 => rates.tf32_tflops,
        _ => rates.f32_tflops,
    }
}

/// A pass of attention.
struct Attended<'o> {
    qkv: &'o Tensor,
    heads: usize,
    kv_heads: usize,
    scores: Scores,
    /// Ranks divide samples of several documents, and gather keys.
    divides_documents: bool,
    pass: Pass,
}

impl Attended<'_> {
    /// FLOP/s of a pass of so many FLOPs.
    fn rate(&self, flops: f64, card: &Card, tf32: bool) -> f64 {
        let channels = self.qkv.shape.last() / (self.heads + 2 * self.kv_heads);
        let rates = &card.attention;
        let (short, products) = match self.pass {
            Pass::Forward => (&rates.forward_tflops, 2),
            Pass::Backward => (&rates.backward_tflops, 5),
        };
        let queries = self.qkv.shape.rows() * self.heads * channels * 2 * products;
        let gain = rates.gain(self.pass, flops / queries as f64);
        let bf16 = at(&rates.head_channels, short, channels as f64) * gain * 1e12;
        match self.qkv.dtype {
            // cuDNN takes no wider heads, no soft cap and no divided documents: our own kernel multiplies in f32.
            DType::Bf16 if channels > 256 || self.scores.soft_cap.is_some() || self.divides_documents => {
                bf16.min(product_rate(DType::F32, card, false))
            }
            DType::Bf16 => bf16,
            // cuDNN takes no f32: it is our own kernel's work.
            dtype => bf16.min(product_rate(dtype, card, tf32)),
        }
    }
}
