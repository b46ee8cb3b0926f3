//! The cost of an operation on a GPU.

use device::ops::{Attention, AttentionBackward, Gemm, Scores};
use device::{DType, Op, Tensor};

use crate::predict::card::{Card, at};

/// The cost of an operation without its waits for others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    /// Seconds before it works. Meanwhile the GPU may do other work.
    pub(super) latency: f64,
    /// Seconds that it takes the GPU.
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
        &Op::Attention(Attention { qkv, keys, heads, kv_heads, scores, documents, .. }) => {
            let divides_documents = keys.is_some() && documents.is_some();
            let of = Attends { qkv, heads, kv_heads, scores, divides_documents };
            op.flops() / attention_rate(of, card, tf32, &card.attention.forward_tflops)
        }
        &Op::AttentionBackward(AttentionBackward { qkv, keys, heads, kv_heads, scores, documents, .. }) => {
            let divides_documents = keys.is_some() && documents.is_some();
            let of = Attends { qkv, heads, kv_heads, scores, divides_documents };
            op.flops() / attention_rate(of, card, tf32, &card.attention.backward_tflops)
        }
        // The marks of the watch and the step's scalars move nothing: they are latency alone.
        _ => op.bytes() / bytes_per_second,
    };
    let ramp = if work > 0.0 { card.kernel.ramp_us * 1e-6 } else { 0.0 };
    Price { latency: card.kernel.latency_us * 1e-6, work: work + ramp }
}

/// A product takes the longer of its multiplications and its reads and writes. An epilogue's tensors come on top: the
/// library's epilogues overlap with little, and a kernel of their own reads as much.
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

/// The properties of an attention that decide its rate.
struct Attends {
    qkv: Tensor,
    heads: usize,
    kv_heads: usize,
    scores: Scores,
    /// Ranks divide samples of several documents, and gather keys.
    divides_documents: bool,
}

/// FLOP/s of attention.
fn attention_rate(of: Attends, card: &Card, tf32: bool, rates: &[f64]) -> f64 {
    let Attends { qkv, heads, kv_heads, scores, divides_documents } = of;
    let channels = qkv.shape.last() / (heads + 2 * kv_heads);
    let bf16 = at(&card.attention.head_channels, rates, channels as f64) * 1e12;
    match qkv.dtype {
        // cuDNN takes no wider heads, no soft cap and no divided documents: our own kernel multiplies in f32.
        DType::Bf16 if channels > 256 || scores.soft_cap.is_some() || divides_documents => {
            bf16.min(product_rate(DType::F32, card, false))
        }
        DType::Bf16 => bf16,
        // cuDNN takes no f32: it is our own kernel's work.
        dtype => bf16.min(product_rate(dtype, card, tf32)),
    }
}
