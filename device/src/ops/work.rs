//! The amount of work of an operation, on any device.

use super::{Attention, AttentionBackward, AttentionSizes, Epilogue, Gemm, Mask, MatrixPlace};
use crate::{DType, Op, Tensor};

impl Op {
    /// Floating-point operations of its matrix products. For attention only unmasked pairs count. 0 for operations
    /// without products.
    pub fn flops(&self) -> f64 {
        match self {
            Op::Gemm(gemm) => {
                let [rows, columns, inner] = gemm.sizes().map(|size| size as f64);
                2.0 * rows * columns * inner
            }
            Op::GroupedGemm(gemm) => {
                let [rows, n, k] = gemm.sizes().map(|size| size as f64);
                2.0 * rows * n * k
            }
            Op::Attention(Attention { qkv, heads, kv_heads, mask, keys, .. }) => {
                scores(AttentionSizes::new(qkv, *heads, *kv_heads).with_keys(*keys), *mask) * 2.0
            }
            Op::AttentionBackward(AttentionBackward { qkv, heads, kv_heads, mask, keys, .. }) => {
                let keys = keys.map(|keys| keys.keys);
                scores(AttentionSizes::new(qkv, *heads, *kv_heads).with_keys(keys), *mask) * 5.0
            }
            // As if it ran.
            Op::When(when) => when.body.iter().map(Op::flops).sum(),
            _ => 0.0,
        }
    }

    /// Bytes that it reads and writes. A tensor updated in place counts twice.
    pub fn bytes(&self) -> f64 {
        match self {
            Op::Gemm(gemm) => {
                let tensors = [gemm.a, gemm.b, gemm.out];
                let bytes = |(place, tensor): (MatrixPlace, Tensor)| place.rows * place.columns * tensor.dtype.size();
                let [a, b, out] = [0, 1, 2].map(|at| bytes((gemm.places()[at], tensors[at])));
                let outputs = out * if gemm.accumulate { 2 } else { 1 };
                (a + b + outputs + gemm.epilogue_bytes()) as f64
            }
            // Only the table's rows of the batch's tokens are touched.
            Op::Embedding(lookup) => (2 * lookup.output.bytes()) as f64,
            Op::EmbeddingBackward(lookup) => {
                let gradients = lookup.grad_output;
                (gradients.bytes() + 2 * gradients.elements() * DType::F32.size()) as f64
            }
            Op::When(when) => when.flag.bytes() as f64 + when.body.iter().map(Op::bytes).sum::<f64>(),
            // Marks of the watch and a step's scalars.
            Op::ProgressMark(_) | Op::WriteControl(_) | Op::WriteSampleRecord(_) => 0.0,
            _ => {
                let accesses = self.accesses();
                accesses.reads.iter().chain(&accesses.writes).map(|tensor| tensor.bytes() as f64).sum()
            }
        }
    }

    /// Its shape in words: rows, columns and inner size of a product, otherwise the shape of the largest tensor that it
    /// writes, or reads if it writes none.
    pub fn shape(&self) -> String {
        if let Op::Gemm(gemm) = self {
            let [rows, columns, inner] = gemm.sizes();
            return format!("{rows} x {columns} x {inner}");
        }
        if let Op::GroupedGemm(gemm) = self {
            let [rows, n, k] = gemm.sizes();
            return format!("{rows} x {n} x {k}, {} experts", gemm.experts());
        }
        let accesses = self.accesses();
        let of = if accesses.writes.is_empty() { &accesses.reads } else { &accesses.writes };
        let largest = of.iter().max_by_key(|tensor| tensor.bytes());
        let words = |tensor: &Tensor| tensor.shape.sizes().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        largest.map_or_else(String::new, words)
    }

    /// The type of the factors of a product or attention. `None` for other operations.
    pub fn factor_type(&self) -> Option<DType> {
        match self {
            Op::Gemm(gemm) => Some(gemm.a.dtype),
            Op::GroupedGemm(gemm) => Some(gemm.a.dtype),
            Op::Attention(Attention { qkv, .. }) | Op::AttentionBackward(AttentionBackward { qkv, .. }) => {
                Some(qkv.dtype)
            }
            _ => None,
        }
    }
}

impl Gemm {
    /// Rows, columns and inner size.
    pub fn sizes(&self) -> [usize; 3] {
        let (rows, columns, inner) = self.dimensions();
        [rows, columns, inner]
    }

    /// Bytes that the epilogue reads and writes besides the product's.
    pub fn epilogue_bytes(&self) -> usize {
        match &self.epilogue {
            Epilogue::None | Epilogue::Bias(_) => 0,
            Epilogue::BiasGelu { pre, .. } => pre.bytes(),
            Epilogue::GeluBackward { pre, activated } => pre.bytes() + activated.map_or(0, |out| out.bytes()),
        }
    }
}

/// Channels times pairs of positions (a query and a key that it sees), over all heads: half of a product's FLOPs. Ranks
/// that divide sequences have equally many pairs, but for the ends of windows.
fn scores(sizes: AttentionSizes, mask: Mask) -> f64 {
    let pairs = mask.doubled_pairs(sizes.keys) as f64 / sizes.share.ranks as f64;
    sizes.batch as f64 * pairs * (sizes.heads * sizes.dim) as f64
}

#[cfg(test)]
mod tests {
    use crate::ops::{Add, Epilogue, Gemm};
    use crate::{BufferId, DType, Op, Tensor};

    #[test]
    fn a_product_counts_its_multiplications_and_an_accumulated_output_twice() {
        let tensor =
            |sizes: [usize; 2], dtype| Tensor { address: 16, shape: sizes.into(), dtype, buffer: BufferId::NOTHING };
        let (input, weight) = (tensor([8, 4], DType::Bf16), tensor([6, 4], DType::Bf16));
        let forward: Op = Gemm::linear(input, weight, tensor([8, 6], DType::Bf16), Epilogue::None).into();
        assert_eq!((forward.flops(), forward.shape().as_str()), (2.0 * 8.0 * 6.0 * 4.0, "8 x 6 x 4"));
        assert_eq!(forward.bytes(), (2 * (8 * 4 + 6 * 4 + 8 * 6)) as f64);
        assert_eq!(forward.factor_type(), Some(DType::Bf16));
        let (grad_output, grad_weight) = (tensor([8, 6], DType::Bf16), tensor([6, 4], DType::F32));
        let wgrad: Op = Gemm::wgrad(grad_output, input, grad_weight, true).into();
        assert_eq!((wgrad.flops(), wgrad.shape().as_str()), (forward.flops(), "6 x 4 x 8"));
        assert_eq!(wgrad.bytes(), (2 * (8 * 4 + 8 * 6) + 2 * 4 * 6 * 4) as f64);
        let sum: Op = Add { a: input, b: input, output: input }.into();
        assert_eq!((sum.flops(), sum.bytes(), sum.shape().as_str()), (0.0, (3 * 2 * 8 * 4) as f64, "8 x 4"));
    }
}
