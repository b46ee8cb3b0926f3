//! What an operation costs on a GPU.

use device::ops::{Attention, AttentionBackward, Epilogue, Gemm};
use device::{DType, Op, Tensor};

use crate::predict::card::{Card, at};

/// What an operation costs besides waiting for others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    /// Seconds before it works. Meanwhile the GPU may do other work.
    pub(super) latency: f64,
    /// Seconds for which it takes the GPU.
    pub(super) work: f64,
}

/// The price of an operation that is not a transfer. `tf32`: products of f32 are rounded to TF32.
pub(super) fn price(op: &Op, card: &Card, tf32: bool) -> Price {
    let bytes_per_second = card.memory.gb_per_s * 1e9;
    let work = match op {
        Op::Gemm(gemm) => product(gemm, card, tf32),
        Op::Attention(Attention { qkv, heads, kv_heads, .. }) => {
            let flops = scores(qkv, *heads, *kv_heads) * 2.0;
            flops / attention_rate(qkv, *heads, *kv_heads, card, tf32, &card.attention.forward_tflops)
        }
        Op::AttentionBackward(AttentionBackward { qkv, heads, kv_heads, .. }) => {
            let flops = scores(qkv, *heads, *kv_heads) * 5.0;
            flops / attention_rate(qkv, *heads, *kv_heads, card, tf32, &card.attention.backward_tflops)
        }
        // Of a table only the rows of the batch's tokens are touched.
        Op::Embedding(lookup) => (2 * lookup.output.bytes()) as f64 / bytes_per_second,
        Op::EmbeddingBackward(lookup) => {
            let (gradients, size) = (lookup.grad_output, DType::F32.size());
            (gradients.bytes() + 2 * gradients.elements() * size) as f64 / bytes_per_second
        }
        // The marks of the watch and the step's scalars are latency alone.
        Op::ProgressMark(_) | Op::WriteControl(_) | Op::WriteSampleRecord(_) => 0.0,
        _ => {
            let accesses = op.accesses();
            moved(&accesses.reads, &accesses.writes) / bytes_per_second
        }
    };
    let ramp = if work > 0.0 { card.kernel.ramp_us * 1e-6 } else { 0.0 };
    Price { latency: card.kernel.latency_us * 1e-6, work: work + ramp }
}

/// Bytes read and written. A tensor updated in place is in both.
fn moved(reads: &[Tensor], writes: &[Tensor]) -> f64 {
    reads.iter().chain(writes).map(|tensor| tensor.bytes() as f64).sum()
}

/// A product takes the longer of its multiplications and its reads and writes. An epilogue's tensors come on top: the
/// library's epilogues overlap with little, and a kernel of their own reads as much.
fn product(gemm: &Gemm, card: &Card, tf32: bool) -> f64 {
    let (rows, columns) = (gemm.out.shape.rows(), gemm.out.shape.last());
    let inner = gemm.a.elements() / rows.max(1);
    let flops = 2.0 * rows as f64 * columns as f64 * inner as f64;
    let epilogue = match &gemm.epilogue {
        Epilogue::None | Epilogue::Bias(_) => 0,
        Epilogue::BiasGelu { pre, .. } => pre.bytes(),
        Epilogue::GeluBackward { pre, activated } => pre.bytes() + activated.map_or(0, |out| out.bytes()),
    };
    let bytes = gemm.a.bytes() + gemm.b.bytes() + gemm.out.bytes() * if gemm.accumulate { 2 } else { 1 };
    let bytes_per_second = card.memory.gb_per_s * 1e9;
    let multiplying = flops / product_rate(gemm.a.dtype, card, tf32);
    multiplying.max(bytes as f64 / bytes_per_second) + epilogue as f64 / bytes_per_second
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

/// Channels times pairs of positions of which one sees the other, over all heads: half of a product's FLOPs.
fn scores(qkv: &Tensor, heads: usize, kv_heads: usize) -> f64 {
    let sizes = qkv.shape.sizes();
    let channels = sizes[2] / (heads + 2 * kv_heads);
    sizes[0] as f64 * (sizes[1] * sizes[1]) as f64 * (heads * channels) as f64
}

/// FLOP/s of attention.
fn attention_rate(qkv: &Tensor, heads: usize, kv_heads: usize, card: &Card, tf32: bool, rates: &[f64]) -> f64 {
    let channels = qkv.shape.last() / (heads + 2 * kv_heads);
    let bf16 = at(&card.attention.head_channels, rates, channels as f64) * 1e12;
    match qkv.dtype {
        DType::Bf16 => bf16,
        // cuDNN takes no f32: it is our own kernel's work.
        dtype => bf16.min(product_rate(dtype, card, tf32)),
    }
}
