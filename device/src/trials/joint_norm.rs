//! Trials of norms over all query heads and all key heads.

use super::case::Trials;
use super::sizes::Sizes;
use crate::DType;
use crate::ops::{HeadSums, JointNorm, JointNormBackward, WeightedGradient};

pub(super) fn joint_norms(s: Sizes, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, heads, kv_heads, head_dim, .. } = s;
    let (shape, rows, eps) = ([batch, seq, (heads + 2 * kv_heads) * head_dim], batch * seq, 1e-6);
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    for (label, has_gradient) in [("squares", false), ("products", true)] {
        to.add(&format!("{label} of all heads"), move |b| {
            let input = b.input(shape, dtype)?;
            let gradient = WeightedGradient {
                grad: b.input(shape, dtype)?,
                query_weight: b.input([queries], dtype)?,
                key_weight: b.input([keys], dtype)?,
            };
            let sums = b.output([rows, 2], DType::F32)?;
            Ok(HeadSums { input, gradient: has_gradient.then_some(gradient), sums, heads, kv_heads })
        });
    }
    to.add("norm of all heads", move |b| {
        let (input, output) = (b.input(shape, dtype)?, b.output(shape, dtype)?);
        let (query_weight, key_weight) = (b.input([queries], dtype)?, b.input([keys], dtype)?);
        let squares = b.output([rows, 2], DType::F32)?;
        b.run(HeadSums { input, gradient: None, sums: squares, heads, kv_heads })?;
        Ok(JointNorm { input, output, query_weight, key_weight, squares, heads, kv_heads, ranks: 1, eps })
    });
    for (label, frozen, accumulate) in [("", false, false), (", adding", false, true), (", frozen", true, false)] {
        to.add(&format!("norm of all heads backward{label}"), move |b| {
            let (input, grad) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
            let (query_weight, key_weight) = (b.input([queries], dtype)?, b.input([keys], dtype)?);
            let (squares, products) = (b.output([rows, 2], DType::F32)?, b.output([rows, 2], DType::F32)?);
            b.run(HeadSums { input, gradient: None, sums: squares, heads, kv_heads })?;
            let gradient = Some(WeightedGradient { grad, query_weight, key_weight });
            b.run(HeadSums { input, gradient, sums: products, heads, kv_heads })?;
            let mut sums = |channels: usize| match accumulate {
                _ if frozen => Ok(None),
                true => b.input([channels], DType::F32).map(Some),
                false => b.output([channels], DType::F32).map(Some),
            };
            let (grad_query_weight, grad_key_weight) = (sums(queries)?, sums(keys)?);
            Ok(JointNormBackward {
                input,
                grad,
                query_weight,
                key_weight,
                squares,
                products,
                grad_query_weight,
                grad_key_weight,
                heads,
                kv_heads,
                ranks: 1,
                eps,
                accumulate,
            })
        });
    }
}
